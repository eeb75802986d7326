"""Check a finished engine against its lock: every package, every file, and that it imports."""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from caovand.adapters.engine_install import places
from caovand.adapters.engine_install.commands import Run
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.lock import Lock, canonical, parse, same_version
from caovand.adapters.engine_install.prove import PLUGIN, Proof, prove
from caovand.adapters.files import safe_files

_STARTUP = ("sitecustomize*", "usercustomize*", "*.pth")


def lock_of(engine: places.Engine) -> Lock:
    """The lock an engine was made from."""
    path = engine.path / places.LOCK_COPY
    return parse(safe_files.read_text(path, places.MAX_BYTES), str(path))


class Records:
    """The files that packages in a site-packages folder claim, by their RECORDs.

    `owners`: file -> package -> its hash there, "" for a file without one (compiled, RECORD).
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
    """One line for each set of packages that own files together with other content in each.

    `owners`: file -> package -> what tells its content there, "" where nothing does. Which of them
    lies there is chance. Of files outside all packages (left-overs of building, as
    `build_backend.py`) nothing depends.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for file, contents in sorted(owners.items()):
        if "/" in file and not file.startswith("..") and len({*contents.values()} - {""}) > 1:
            found.setdefault(tuple(sorted(contents)), []).append(file)
    for names, files in found.items():
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        yield f"{' and '.join(names)} both own {files[0]}{more}"


def find_damage(engine: places.Engine, progress: Callable[[int, int, str], None]) -> Iterator[str]:
    """List what is missing, changed or added, one line each; empty if the engine is whole."""
    lock = lock_of(engine)
    site = next((engine.path / "lib").glob("python3*/site-packages"), None)
    if site is None:
        yield "lib/python3*/site-packages is not there"
        return
    records = Records(site)
    for pin in lock.pins:
        info = records.infos.get(canonical(pin.name))
        if info is None:
            yield f"{pin.name} {pin.version} is not installed"
        elif not same_version(info.name.removesuffix(".dist-info").split("-")[1], pin.version):
            yield f"{info.name} is there, the lock wants {pin.version}"
    if engine.plugin is not None and PLUGIN not in records.infos:
        yield f"the plugin {engine.plugin} is not installed"
    for name in records.without:
        yield f"{name} has no RECORD"
    yield from shared_files(records.owners)
    sources = {canonical(name) for name in lock.sources}
    built = {file for file, owners in records.owners.items() if sources & owners.keys()}
    for number, (file, hashes) in enumerate(records.owners.items(), 1):
        wanted = {one.partition("=")[2] for one in hashes.values()} - {""}
        # not what is compiled anew for this Python; scripts name their environment
        scripts = "/bin/" in file.rpartition("..")[2] and file not in built
        if wanted and not file.endswith(".pyc") and not scripts:
            yield from _changed(site, file, wanted)
        if number % 500 == 0 or number == len(records.owners):
            progress(number, len(records.owners), min(hashes))
    for pattern in _STARTUP:  # what Python runs at each start, whoever put it there
        for path in sorted(site.glob(pattern)):
            inside = [path.name, f"{path.name}/__init__.py"]
            if not any(one in records.owners for one in inside):
                yield f"{path.name} belongs to no package, and Python runs it at every start"


def _changed(site: Path, name: str, wanted: set[str]) -> Iterator[str]:
    try:
        digest = hashlib.sha256((site / name).read_bytes()).digest()
    except OSError as error:
        yield f"{name}: {error.strerror}"
        return
    if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() not in wanted:
        yield f"{name} is not as it was installed"


def verify(
    engine: places.Engine,
    run: Run,
    progress: Callable[[int, int, str], None],
) -> tuple[list[str], Proof | None]:
    """All damage found, and the proof that it imports.

    Raises EngineError if it does not; where damage was found that is one more line of it.
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
