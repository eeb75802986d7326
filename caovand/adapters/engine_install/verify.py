"""Check a finished engine against its lock: every package, every file, and that it imports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from caovand.adapters.engine_install import places
from caovand.adapters.engine_install.commands import ReportProgress, RunCommand
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.lock import Lock, canonical, parse, same_version
from caovand.adapters.engine_install.prove import PLUGIN, Proof, prove
from caovand.adapters.engine_install.records import Records, content_hash, find_shared_files
from caovand.adapters.files import safe_files

_STARTUP = ("sitecustomize*", "usercustomize*", "*.pth")


def verify(
    engine: places.InstalledEngine, run: RunCommand, progress: ReportProgress
) -> tuple[list[str], Proof | None]:
    """List all damage, and prove that the engine imports. Raises EngineError if an undamaged one
    does not; in a damaged one, that failure is listed as well.
    """
    places.require_own(engine.path, f"verify {engine.name}")
    damage = list(find_damage(engine, progress))
    try:
        return damage, prove(lock_of(engine), engine.path, run, plugin=engine.plugin is not None)
    except EngineError as error:
        if not damage:
            raise
        return [*damage, str(error)], None


def lock_of(engine: places.InstalledEngine) -> Lock:
    """Read the lock that an engine was made from."""
    path = engine.path / places.LOCK_COPY
    return parse(safe_files.read_text(path, places.MAX_BYTES), str(path))


def find_damage(engine: places.InstalledEngine, progress: ReportProgress) -> Iterator[str]:
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
            yield f"{info.name} is installed, but the lock pins {pin.version}"
    if engine.plugin is not None and PLUGIN not in records.infos:
        yield f"the plugin {engine.plugin} is not installed"
    for package in records.without:
        yield f"{package} has no RECORD"
    yield from find_shared_files(records.owners)
    sources = {canonical(name) for name in lock.sources}
    for number, (file, hashes) in enumerate(records.owners.items(), 1):
        recorded = {value.partition("=")[2] for value in hashes.values()} - {""}
        # scripts contain their environment's path, except programs that were built here
        script = "/bin/" in file.rpartition("..")[2] and sources.isdisjoint(hashes)
        if recorded and not file.endswith(".pyc") and not script:
            yield from _find_change(site, file, recorded)
        if number % 500 == 0 or number == len(records.owners):
            progress(number, len(records.owners), min(hashes))
    for pattern in _STARTUP:  # files that Python runs at each start, of any origin
        for path in sorted(site.glob(pattern)):
            if records.owners.keys().isdisjoint((path.name, f"{path.name}/__init__.py")):
                yield f"{path.name} does not belong to a package, but Python runs it at every start"


def _find_change(site: Path, name: str, recorded: set[str]) -> Iterator[str]:
    try:
        if content_hash((site / name).read_bytes()) not in recorded:
            yield f"{name} has changed since the installation"
    except OSError as error:
        yield f"{name}: {error.strerror}"
