"""Check a finished engine against its lock: every package, every file, and that it imports."""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from caovand.adapters.environment import places
from caovand.adapters.environment.commands import Run
from caovand.adapters.environment.lock import Lock, canonical, parse, same_version
from caovand.adapters.environment.prove import Proof, prove


def lock_of(engine: places.Engine) -> Lock:
    """The lock an engine was made from."""
    path = engine.path / places.LOCK_COPY
    return parse(path.read_text(encoding="utf-8"), str(path))


def damage(engine: places.Engine, progress: Callable[[int, int, str], None]) -> Iterator[str]:
    """What is missing or changed, one line each; nothing if the engine is whole."""
    lock = lock_of(engine)
    site = next((engine.path / "lib").glob("python3*/site-packages"))
    infos = {canonical(info.name.split("-")[0]): info for info in site.glob("*.dist-info")}
    for number, pin in enumerate(lock.pins, 1):
        info = infos.get(canonical(pin.name))
        if info is None:
            yield f"{pin.name} {pin.version} is not installed"
        elif not same_version(info.name.removesuffix(".dist-info").split("-")[1], pin.version):
            yield f"{info.name} is there, the lock wants {pin.version}"
        else:
            yield from _changed(site, info)
        progress(number, len(lock.pins), pin.name)


def _changed(site: Path, info: Path) -> Iterator[str]:
    with (info / "RECORD").open(encoding="utf-8", newline="") as file:
        for name, wanted, _size in csv.reader(file):
            if not wanted or name.endswith(".pyc") or "/bin/" in name.rpartition("..")[2]:
                continue  # compiled anew for this Python; scripts name their environment
            try:
                digest = hashlib.sha256((site / name).read_bytes()).digest()
            except OSError as error:
                yield f"{name}: {error.strerror}"
                continue
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != wanted.partition("=")[2]:
                yield f"{name} is not as it was installed"


def verify(
    engine: places.Engine,
    run: Run,
    progress: Callable[[int, int, str], None],
) -> tuple[list[str], Proof]:
    """All damage found, and the proof that it imports (EngineError if it does not)."""
    found = list(damage(engine, progress))
    return found, prove(lock_of(engine), engine.path, run)
