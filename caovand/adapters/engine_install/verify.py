"""Check a finished engine against its lock: every package, every file, and that it imports."""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from caovand.adapters.engine_install import places
from caovand.adapters.engine_install.commands import RunCommand
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.lock import Lock, canonical, parse, same_version
from caovand.adapters.engine_install.prove import PLUGIN, Proof, prove
from caovand.adapters.files import safe_files

_STARTUP = ("sitecustomize*", "usercustomize*", "*.pth")


def lock_of(engine: places.InstalledEngine) -> Lock:
    """The lock an engine was made from."""
    path = engine.path / places.LOCK_COPY
    return parse(safe_files.read_text(path, places.MAX_BYTES), str(path))


class Records:
    """The files that packages in a site-packages folder claim in their RECORDs.

    `owners`: file -> package -> the file's hash in that RECORD, "" if it has none (compiled,
    RECORD).
    """

    def __init__(self, site: Path) -> None:
        self.infos = {canonical(one.name.split("-")[0]): one for one in site.glob("*.dist-info")}
        self.owners: dict[str, dict[str, str]] = {}
        self.without: list[str] = []
        for name, info in sorted(self.infos.items()):
            try:
                with (info / "RECORD").open(encoding="utf-8", newline="") as file:
                    for row in csv.reader(file):
                        if len(row) > 1:
                            self.owners.setdefault(row[0], {})[name] = row[1]
            except OSError:
                self.without.append(name)


def shared_files(owners: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """One line for each set of packages that ship the same file with different content.

    `owners`: file -> package -> hash of its content, "" if unknown. Which of them is installed is
    random. Files outside all package folders (build left-overs such as `build_backend.py`) are
    ignored: nothing depends on them.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for file, contents in sorted(owners.items()):
        if "/" in file and not file.startswith("..") and len({*contents.values()} - {""}) > 1:
            found.setdefault(tuple(sorted(contents)), []).append(file)
    for names, files in found.items():
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        yield f"{' and '.join(names)} both own {files[0]}{more}"


def find_damage(
    engine: places.InstalledEngine, progress: Callable[[int, int, str], None]
) -> Iterator[str]:
    """List missing, changed and added files, one line each; empty if the engine is intact."""
    lock = lock_of(engine)
    site = next((engine.path / "lib").glob("python3*/site-packages"), None)
    if site is None:
        yield "lib/python3*/site-packages is missing"
        return
    records = Records(site)
    for pin in lock.pins:
        info = records.infos.get(canonical(pin.name))
        if info is None:
            yield f"{pin.name} {pin.version} is not installed"
        elif not same_version(info.name.removesuffix(".dist-info").split("-")[1], pin.version):
            yield f"{info.name} is installed; the lock names {pin.version}"
    if engine.plugin is not None and PLUGIN not in records.infos:
        yield f"the plugin {engine.plugin} is not installed"
    for name in records.without:
        yield f"{name} has no RECORD"
    yield from shared_files(records.owners)
    sources = {canonical(name) for name in lock.sources}
    built = {file for file, owners in records.owners.items() if sources & owners.keys()}
    for number, (file, hashes) in enumerate(records.owners.items(), 1):
        wanted = {one.partition("=")[2] for one in hashes.values()} - {""}
        # except files that this Python compiles itself; scripts contain their environment's path
        scripts = "/bin/" in file.rpartition("..")[2] and file not in built
        if wanted and not file.endswith(".pyc") and not scripts:
            yield from _find_changed(site, file, wanted)
        if number % 500 == 0 or number == len(records.owners):
            progress(number, len(records.owners), min(hashes))
    for pattern in _STARTUP:  # files that Python runs at each start, of any origin
        for path in sorted(site.glob(pattern)):
            inside = [path.name, f"{path.name}/__init__.py"]
            if not any(one in records.owners for one in inside):
                yield f"{path.name} belongs to no package, and Python runs it at every start"


def _find_changed(site: Path, name: str, wanted: set[str]) -> Iterator[str]:
    try:
        digest = hashlib.sha256((site / name).read_bytes()).digest()
    except OSError as error:
        yield f"{name}: {error.strerror}"
        return
    if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() not in wanted:
        yield f"{name} has changed since the installation"


def verify(
    engine: places.InstalledEngine,
    run: RunCommand,
    progress: Callable[[int, int, str], None],
) -> tuple[list[str], Proof | None]:
    """List all damage, and prove that the engine imports. Raises EngineError if an undamaged one
    does not; in a damaged one, that failure is listed as well.
    """
    places.require_own(engine.path, f"verify {engine.name}")
    found = list(find_damage(engine, progress))
    try:
        plugin = engine.plugin is not None
        return found, prove(lock_of(engine), engine.path, run, plugin=plugin)
    except EngineError as error:
        if not found:
            raise
        return [*found, str(error)], None
