"""Get the wheels that a lock names into a folder, and identify them by their sha256.

A file counts if the lock names its content, whatever its name and origin: so an interrupted
download resumes where it stopped, and an offline folder is safe. pip downloads, so that its
configuration (mirror, proxy, certificate) applies: uv reads neither pip.conf nor PIP_INDEX_URL, and
has no command that only downloads. Source archives are handled the same way.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path

from caovand.adapters.engine_install.commands import ReportProgress, RunCommand, pip
from caovand.adapters.engine_install.errors import (
    EngineError,
    explain_pip,
    not_found,
    unreachable,
)
from caovand.adapters.engine_install.lock import FIRST_KIND, Lock, Pin, canonical
from caovand.adapters.files import safe_files
from caovand.core.units import MIB

BATCH_BYTES = 64 * MIB
BATCH_PINS = 24
_PART = ".part-"
ARCHIVE = ".tar.gz"
# pip asks an archive's build backend for its metadata, which would run the archive's code and
# whatever its backend needs. This backend answers instead, with the name and version from the
# environment.
_BACKEND = """\
import os
def get_requires_for_build_wheel(config_settings=None):
    return []
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name, version = os.environ["CAOVAN_ARCHIVE"].split("==")
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    os.mkdir(os.path.join(folder, info))
    with open(os.path.join(folder, info, "METADATA"), "w") as file:
        file.write(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return info
"""


def sha256(path: Path) -> str:
    """The sha256 of a file, in hex."""
    digest = hashlib.sha256()
    with os.fdopen(safe_files.open_regular(path), "rb") as file:
        while block := file.read(MIB):
            digest.update(block)
    return digest.hexdigest()


class Folder:
    """The wheels and source archives in a folder; each file is read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sha256: dict[Path, str] = {}

    def find(self, pins: Iterable[Pin]) -> dict[str, Path]:
        """Pin name -> file, for the pins whose file is in the folder with the right content."""
        by_hash = {}
        for file in _files(self.path):
            if file not in self._sha256:
                self._sha256[file] = sha256(file)
            by_hash[self._sha256[file]] = file
        return {
            pin.name: by_hash[digest] for pin in pins for digest in pin.sha256 if digest in by_hash
        }

    def refuse_impostor(self, pin: Pin) -> None:
        """Raise EngineError if a file has the pin's name and version but different content."""
        for file, digest in self._sha256.items():
            name, _, rest = file.name.partition("-")
            if (
                canonical(name) == canonical(pin.name)
                and rest.startswith((f"{pin.version}-", f"{pin.version}{ARCHIVE}"))
                and digest not in pin.sha256
            ):
                raise EngineError(
                    f"use {file}",
                    f"its sha256 is {digest}, but the lock pins {' or '.join(pin.sha256)}",
                    "delete it and download it again; if that happens again, do not trust the "
                    "source",
                )


def _files(folder: Path) -> list[Path]:
    return sorted(file for end in (".whl", ARCHIVE) for file in folder.glob(f"*{end}"))


def require_all(lock: Lock, folder: Folder) -> dict[str, Path]:
    """Find every wheel of the lock in an offline folder; raises EngineError if one is missing."""
    what = f"install {lock.name} from {folder.path}"
    kind = "" if lock.kind == FIRST_KIND else f" --kind {lock.kind}"
    fill = (
        f"fill it with: caovanctl engine fetch {lock.version}{kind} --build {lock.build}"
        " --wheels DIR"
    )
    if not folder.path.is_dir():
        raise EngineError(what, "there is no such folder", fill)
    here = folder.find(lock.pins)
    missing = [pin for pin in lock.pins if pin.name not in here]
    for pin in missing:
        folder.refuse_impostor(pin)
    if missing:
        some = _names(missing, 3)
        raise EngineError(
            what, f"{len(missing)} of {len(lock.pins)} wheels are missing ({some})", fill
        )
    return here


def copy_all(lock: Lock, folder: Folder, own: Folder) -> dict[str, Path]:
    """Copy the wheels from another user's offline folder to a place where that user cannot write.

    Otherwise that user could replace them between check and unpacking.
    """
    here = require_all(lock, folder)
    own.path.mkdir(parents=True, exist_ok=True)
    for name in here.keys() - own.find(lock.pins).keys():
        target = own.path / here[name].name
        target.unlink(missing_ok=True)
        safe_files.copy(here[name], target)
    return require_all(lock, Folder(own.path))


def batches(pins: Sequence[Pin], sources: Container[str] = ()) -> list[list[Pin]]:
    """Split pins into batches for one call of pip each; large and unusual ones get their own."""

    def alone(pin: Pin) -> bool:
        # a version with "+" comes from another index, which must not be asked for the others
        return "+" in pin.version or pin.name in sources

    made: list[list[Pin]] = []
    bytes_left = pins_left = 0
    for pin in sorted(pins, key=lambda pin: (alone(pin), pin.size_bytes)):
        if pins_left == 0 or pin.size_bytes > bytes_left or alone(pin):
            made.append([])
            bytes_left, pins_left = BATCH_BYTES, BATCH_PINS
        made[-1].append(pin)
        bytes_left, pins_left = bytes_left - pin.size_bytes, 0 if alone(pin) else pins_left - 1
    return made


def download(
    lock: Lock, python: Path, folder: Folder, run: RunCommand, progress: ReportProgress
) -> dict[str, Path]:
    """Complete the folder with pip, without downloading existing files again, and return its files.

    The caller holds a lock on the folder or on its root.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    for left in folder.path.glob(f"{_PART}*"):  # left by a download that was killed
        shutil.rmtree(left, ignore_errors=True)
    here = folder.find(lock.pins)
    missing = [pin for pin in lock.pins if pin.name not in here]
    total = lock.download_bytes
    done = total - _bytes(missing)
    for batch in batches(missing, lock.sources):
        size, label = _bytes(batch), _names(batch[::-1], 1)  # its largest
        with tempfile.TemporaryDirectory(prefix=_PART, dir=folder.path) as temp:
            part = Path(temp)

            def tick(
                done: int = done, size: int = size, label: str = label, part: Path = part
            ) -> None:
                # pip sometimes keeps a file twice for a moment
                progress(done + min(_size(part), size), total, label)

            _download_batch(lock, batch, python, part, run, tick)
            for file in _files(part / "done"):
                file.replace(folder.path / file.name)
        here = folder.find(lock.pins)
        for pin in batch:
            if pin.name not in here:
                folder.refuse_impostor(pin)
                raise EngineError(
                    f"get {pin.name} {pin.version}",
                    "pip did not download it",
                    "run the command again",
                )
        done += size
        progress(done, total, label)
    return here


def _bytes(pins: Iterable[Pin]) -> int:
    return sum(pin.size_bytes for pin in pins)


def _names(pins: Sequence[Pin], count: int) -> str:
    """The first pins by name and version, and how many more there are."""
    names = ", ".join(f"{pin.name} {pin.version}" for pin in pins[:count])
    return f"{names} and {len(pins) - count} more" if len(pins) > count else names


def _download_batch(
    lock: Lock,
    batch: Sequence[Pin],
    python: Path,
    part: Path,
    run: RunCommand,
    tick: Callable[[], None],
) -> None:
    requirements = part / "batch.txt"
    requirements.write_text("\n".join(pin.requirement for pin in batch) + "\n", encoding="utf-8")
    command = [*pip(python), "download", "--no-deps", "--require-hashes", "--no-cache-dir"]
    command += ["--progress-bar=off", "--dest", str(part / "done"), "-r", str(requirements)]
    env = {"TMPDIR": str(part), "PYTHONPATH": "", "PIP_REQUIRE_VIRTUALENV": ""}
    if batch[0].name in lock.sources:
        command += ["--no-build-isolation", f"--no-binary={batch[0].name}"]
        backend = part / "backend"
        (backend / "setuptools").mkdir(parents=True)
        (backend / "setuptools" / "__init__.py").write_text("", encoding="utf-8")
        (backend / "setuptools" / "build_meta.py").write_text(_BACKEND, encoding="utf-8")
        env |= {"PYTHONPATH": str(backend)}
        env |= {"CAOVAN_ARCHIVE": f"{batch[0].name}=={batch[0].version}"}
    else:
        command.append("--only-binary=:all:")
    what = f"get {_names(batch, 2)}"
    finished = run(command, env, tick)
    missing = not_found(finished.output) if finished.code else None
    if missing and lock.extra_index and not unreachable(finished.output):
        # the user's own index comes first: a mirror or a folder may well have it
        finished = run([*command, "--extra-index-url", lock.extra_index], env, tick)
        if finished.code and not_found(finished.output):
            fate = "cannot be reached" if unreachable(finished.output) else "neither"
            raise EngineError(
                what,
                f"the configured index has no {missing}, and {lock.extra_index}, which publishes "
                f"it, {fate}",
                "make that index reachable, or set PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to a "
                "source that has it",
            )
    if finished.code:
        raise explain_pip(what, finished)


def _size(folder: Path) -> int:
    total = 0
    # os.walk, not rglob: pip moves its folders away in the meantime
    for parent, _folders, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total
