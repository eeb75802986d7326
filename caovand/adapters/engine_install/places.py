"""The folders of engines, which one is in use, and switching between them.

    ROOT/vllm-0.21.0-cuda/   an engine: a virtual environment at the path where it stays,
                             since scripts and pyvenv.cfg hold absolute paths
        caovan-engine.json   written last: without it the engine is unfinished and does not count
        caovan-lock.txt      the lock it was made from
        caovan-steps.json    the finished steps of an unfinished one
    ROOT/current             a link to the engine in use, replaced atomically
    ROOT/previous            a link to the one before, for `rollback`
    ROOT/current-KIND        the same for each other kind of engine, and `previous-` likewise
    ROOT/.wheels/            downloads for unfinished engines
    ROOT/.python/            Pythons that uv installed
    ROOT/.python-archives/   their archives, in a folder for an offline machine
    ROOT/.lock               locked while anything here is changed, also by the pip we started

Write access here is the right to run code as the service: the root belongs to root, mode 0755.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.lock import FIRST_KIND
from caovand.adapters.files import installed, safe_files
from caovand.engines import registry

DEFAULT_ROOT = Path("/var/lib/caovan/engines")
ROOT_VARIABLE = "CAOVAN_ENGINES"
MARKER = "caovan-engine.json"
LOCK_COPY = "caovan-lock.txt"
STEPS = "caovan-steps.json"
MAX_BYTES = 1 << 20
"""The maximum size of a marker, a journal or a lock file."""


@dataclass(frozen=True)
class InstalledEngine:
    """A finished engine; `made_at` is ISO 8601, UTC.

    `torch` is "" and `plugin` None if it has none. `cards` are the compute capabilities that it was
    built for, if it was built here.
    """

    name: str
    path: Path
    version: str
    build: str
    python: str
    torch: str
    plugin: str | None
    plugin_sha256: str | None
    lock_sha256: str
    made_at: str
    kind: str = FIRST_KIND
    cards: tuple[str, ...] = ()

    @property
    def interpreter(self) -> Path:
        return self.path / "bin" / "python"


_IN_MARKER = tuple(field.name for field in fields(InstalledEngine))[2:]
"""The fields in the marker: all but the name and the path, which are the folder's."""


def site_packages(path: Path) -> Path:
    """The folder of packages in an engine's environment."""
    return next(path.glob("lib/python3*/site-packages"))


def root_from(option: str | None, environ: Mapping[str, str]) -> Path:
    """The engines' folder: the option, else `ROOT_VARIABLE`, else the system's."""
    return installed.root_from(option, environ, ROOT_VARIABLE, DEFAULT_ROOT)


def read(path: Path) -> InstalledEngine | None:
    """The engine in a folder; None if there is none or it is unfinished."""
    try:
        marker = json.loads(safe_files.read_text(path / MARKER, MAX_BYTES))
        marker = {"kind": FIRST_KIND, "cards": (), "plugin_sha256": None, **marker}
        marker["cards"] = tuple(marker["cards"])
        return InstalledEngine(path.name, path, **{key: marker[key] for key in _IN_MARKER})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def finish(engine: InstalledEngine) -> None:
    """Mark an engine as finished: from here on it counts."""
    marker = {key: getattr(engine, key) for key in _IN_MARKER}
    _write_json(engine.path / MARKER, marker, indent=1)
    (engine.path / STEPS).unlink(missing_ok=True)


def _write_json(path: Path, data: Mapping[str, Any], indent: int | None = None) -> None:
    safe_files.replace(path, json.dumps(data, indent=indent) + "\n", 0o644)


def engines(root: Path) -> list[InstalledEngine]:
    """Every finished engine, by name."""
    return [engine for path in _folders(root) if (engine := read(path)) is not None]


def unfinished(root: Path) -> list[str]:
    """Names of unfinished engines."""
    return [path.name for path in _folders(root) if read(path) is None and (path / STEPS).exists()]


def _folders(root: Path) -> list[Path]:
    return [path for path in installed.folders(root) if not path.name.startswith(".")]


def link_of(role: str, kind: str) -> str:
    """The name of the link "current" or "previous" for a kind of engine."""
    return role if kind == FIRST_KIND else f"{role}-{kind}"


def linked_engine(root: Path, role: str, kind: str) -> InstalledEngine | None:
    """The finished engine that a kind's link points to."""
    try:
        name = (root / link_of(role, kind)).readlink()
    except OSError:
        return None
    return read(root / name)


def current(root: Path, kind: str = FIRST_KIND) -> InstalledEngine | None:
    """The engine in use, with its real path: a running engine must not notice a switch."""
    return linked_engine(root, "current", kind)


def resolve_python(python: Path) -> Path:
    """Resolve the folder of an engine's Python: `current` may be switched while it runs.

    A Python started through `current` would import modules from there for as long as it runs. The
    last part is not resolved: a virtual environment's python is itself a link, out of the
    environment.
    """
    return python.parent.resolve() / python.name


def get(root: Path, name: str, what: str) -> InstalledEngine:
    """A finished engine by name; raises EngineError if there is none."""
    engine = read(root / name) if "/" not in name and not name.startswith(".") else None
    if engine is not None:
        return engine
    if name in unfinished(root):
        raise EngineError(what, f"{name} is unfinished", "run the same engine install again")
    names = ", ".join(engine.name for engine in engines(root)) or "none"
    raise EngineError(what, f"{root} has no engine {name}", f"available: {names}")


def switch(root: Path, name: str) -> None:
    """Make an engine the current one of its kind, atomically, and remember the previous one."""
    engine = get(root, name, f"use {name}")
    kind = engine.kind
    _finish_switch(root, kind)
    before = current(root, kind)
    if before is not None and before.name != engine.name:
        _stage(root / link_of("previous", kind), before.name)
    _link(root / link_of("current", kind), engine.name)
    _finish_switch(root, kind)


def rollback(root: Path, kind: str = FIRST_KIND) -> InstalledEngine:
    """Switch back to the previously used engine of a kind; a second rollback returns."""
    _finish_switch(root, kind)
    now, before = current(root, kind), linked_engine(root, "previous", kind)
    if before is None or (now is not None and now.name == before.name):
        raise EngineError(
            "roll back",
            f"{root} has no earlier engine",
            "choose one with sudo caovanctl engine use NAME",
        )
    switch(root, before.name)
    return before


def _staged(link: Path) -> Path:
    return link.with_name(f".{link.name}.new")


def _stage(link: Path, target: str) -> None:
    _staged(link).unlink(missing_ok=True)
    _staged(link).symlink_to(target)


def _activate_link(link: Path) -> None:
    _staged(link).replace(link)


def _link(link: Path, target: str) -> None:
    _stage(link, target)
    _activate_link(link)


def _finish_switch(root: Path, kind: str) -> None:
    """Finish a switch, even one that was killed: `previous` is set once `current` has moved on."""
    previous = root / link_of("previous", kind)
    waiting = _staged(previous)
    if waiting.is_symlink():
        now = current(root, kind)
        if now is not None and now.name == waiting.readlink().name:
            waiting.unlink()  # killed before the switch: the older `previous` stays
        else:
            _activate_link(previous)


def remove(root: Path, name: str) -> None:
    """Delete an engine, finished or not; refuse the current one and one that still runs."""
    what = f"remove {name}"
    if name not in unfinished(root):
        get(root, name, what)
    path = root / name
    used = {now.name for kind in registry.MODULES if (now := current(root, kind)) is not None}
    if name in used:
        raise EngineError(what, "it is in use", "switch first: sudo caovanctl engine use NAME")
    if pids := users_of(path):
        raise EngineError(
            what,
            f"process {', '.join(map(str, pids))} is running from it",
            "restart the service first",
        )
    for kind in registry.MODULES:
        _finish_switch(root, kind)
        before = linked_engine(root, "previous", kind)
        if before is not None and before.name == name:
            (root / link_of("previous", kind)).unlink()
    discard(path)


def discard(path: Path) -> None:
    """Delete a folder; renamed first, so that a half-deleted one is never mistaken for an
    engine."""
    sweep(path.parent)
    grave = installed.grave_of(path)
    path.rename(grave)
    shutil.rmtree(grave)


def sweep(root: Path) -> None:
    """Finish deletions and a switch that were killed."""
    for kind in registry.MODULES:
        _finish_switch(root, kind)
    for grave in root.glob(f"{installed.GRAVE}*"):
        shutil.rmtree(grave, ignore_errors=True)


class Journal:
    """The finished steps of an unfinished engine, on disk; those of another lock are ignored."""

    def __init__(self, path: Path, lock_sha256: str) -> None:
        self._file = path / STEPS
        self._lock_sha256 = lock_sha256

    def completed_steps(self) -> tuple[str, ...]:
        try:
            data = json.loads(safe_files.read_text(self._file, MAX_BYTES))
            return tuple(data["done"]) if data["lock_sha256"] == self._lock_sha256 else ()
        except (OSError, ValueError, KeyError, TypeError):
            return ()

    def begin(self) -> None:
        self._write(())

    def add(self, step: str) -> None:
        self._write((*self.completed_steps(), step))

    def _write(self, done: tuple[str, ...]) -> None:
        _write_json(self._file, {"lock_sha256": self._lock_sha256, "done": done})


def users_of(path: Path) -> list[int]:
    """Find processes that have a file of this engine mapped."""
    # not the command line: vLLM renames its processes, which wipes it
    mark = f" {path}/"
    return find_processes(
        lambda process: mark in (process / "maps").read_text(encoding="utf-8", errors="replace")
    )


def find_processes(test: Callable[[Path], bool]) -> list[int]:
    """Find the processes whose folder in /proc passes a test, among those we may inspect."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if test(process):
                pids.append(int(process.name))
    return sorted(pids)


@contextlib.contextmanager
def locked(root: Path, what: str, *, make: bool = True) -> Iterator[None]:
    """Lock the root for one change. Raises EngineError if it is locked already, or not ours.

    Without `make` a missing root is an error.
    """
    if not make and not root.is_dir():
        raise EngineError(what, f"the folder {root} does not exist", "check --root")
    require_own(root, what)
    busy = f"another engine command is running in {root}"
    with installed.locked(root / ".lock", what, busy, EngineError, make=True) as lock:
        # children inherit it: a pip that outlives us blocks the next installation
        os.set_inheritable(lock, True)
        yield


def require_own(folder: Path, what: str) -> None:
    """Raise EngineError if we are root and another user can change the folder."""
    installed.require_own(folder, what, EngineError)
