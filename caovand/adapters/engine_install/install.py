"""Make an engine from a lock, in steps that may be interrupted anywhere.

The environment is made at its final path. It counts only once `finish` has written its marker, and
is used only once `current` has been switched after that; until then nothing that works has been
touched. A repeated installation resumes: wheels are recognised by their content, the filled
environment by its journal, and a half-filled one is discarded and started again. An engine that
differs only by its plugin starts as a copy of hard links, in seconds. Packages that a lock has as
source are built between filling and proving.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from caovand.adapters.engine_install import build, from_source, places, toolkit, wheels
from caovand.adapters.engine_install.adapt import adapt, fix_records
from caovand.adapters.engine_install.commands import InstallWorld
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.from_source import BuildOptions, check_compiler
from caovand.adapters.engine_install.lock import Lock
from caovand.adapters.engine_install.places import Journal
from caovand.adapters.engine_install.prove import prove
from caovand.adapters.engine_install.pythons import find, named_python
from caovand.adapters.engine_install.verify import Records, shared_files
from caovand.adapters.files import safe_files, trust
from caovand.core.engine.install import Source
from caovand.core.units import MIB
from caovand.engines import registry

MARGIN_MIB = 512


@dataclass(frozen=True)
class InstallRequest:
    """An engine to install, and its sources.

    `offline` is a folder that has every wheel; `again` installs a second copy of an identical
    engine. `public`: the service runs it as another user, so its Python must not lie in a private
    folder. `compilers` are for an engine that is built here.
    """

    lock: Lock
    root: Path
    python: str | None = None
    offline: Path | None = None
    plugin: Path | None = None
    again: bool = False
    public: bool = False
    compilers: BuildOptions = field(default_factory=BuildOptions)


def install(order: InstallRequest, world: InstallWorld) -> places.InstalledEngine:
    """Make the engine, prove it and switch to it; if an identical one exists, only switch.

    Raises EngineError; after any exception the engine in use is the same as before.
    """
    lock, root = order.lock, order.root
    plugin = build.plugin_identity(order.plugin) if order.plugin else None
    with safe_files.readable_by_all(), places.locked(root, f"install {lock.name}"):
        places.sweep(root)
        base = None if order.again else _find_equal(order, plugin)
        if base is not None:
            _check_python(order, base, world)
        if base is not None and plugin in (None, base.plugin_sha256):
            now = places.current(root, lock.kind)
            if now is None or now.name != base.name:
                prove(lock, base.path, world.run, plugin=base.plugin is not None)
                places.switch(root, base.name)
            _drop_wheels(order)
            world.say(f"{base.name} is installed already (--again installs a second copy)")
            return base
        source = registry.engine_of(lock.kind).install.source
        if source is not None:
            check_compiler(lock, world.environ)
        path = _choose_folder(order)
        _fill(order, path, base, world)
        if source is not None:
            _build(source, order, path, world)
        elif order.plugin is None:
            world.say(f"[5/6] no plugin: the engine is plain {lock.title}")
        else:
            world.say(f"[5/6] adding caovan's plugin from {order.plugin}")
            build.add_plugin(order.plugin, path, world)
        how = "two completions" if source is not None else f"importing {lock.title} in it"
        world.say(f"[6/6] proving {path.name}: {how}")
        proof = prove(lock, path, world.run, plugin=order.plugin is not None)
        for note in proof.notes:
            world.say(f"      note: {note}")
        engine = places.InstalledEngine(
            name=path.name,
            path=path,
            kind=lock.kind,
            version=proof.version,
            build=lock.build,
            python=proof.python,
            torch=proof.torch,
            plugin=proof.plugin,
            plugin_sha256=plugin,
            lock_sha256=lock.digest,
            made_at=world.now().isoformat(timespec="seconds"),
            cards=order.compilers.named_cards,
        )
        places.finish(engine)
        places.switch(root, engine.name)
        _drop_wheels(order)
    return engine


def _build(source: Source, order: InstallRequest, path: Path, world: InstallWorld) -> None:
    """Step 5 of an engine that is built here; completed once, despite interruptions."""
    lock, journal = order.lock, Journal(path, order.lock.digest)
    step = " ".join(("build", *order.compilers.named_cards))
    if step in journal.completed_steps():
        return
    jobs = order.compilers.jobs
    world.say(f"[5/6] building {source.target}, some minutes: {jobs} compilers at once")
    files = _get_files(order, path, world)
    from_source.build(source, lock, path, files, order.compilers, world)
    journal.add(step)


def _drop_wheels(order: InstallRequest) -> None:
    """Delete the files that were downloaded for this engine; another lock's downloads stay."""
    folder = wheels.Folder(order.root / ".wheels")
    for wheel in folder.find(order.lock.pins).values():
        wheel.path.unlink()
    with contextlib.suppress(OSError):
        folder.path.rmdir()


def _find_equal(order: InstallRequest, plugin: str | None) -> places.InstalledEngine | None:
    """Find a finished engine of the same lock: preferably with this plugin, then the one in use.

    An engine that was built here must be for these cards.
    """
    cards = set(order.compilers.named_cards)
    equal = [
        engine
        for engine in places.engines(order.root)
        if engine.lock_sha256 == order.lock.digest and cards <= set(engine.cards)
    ]
    now = places.current(order.root, order.lock.kind)
    return min(
        equal,
        key=lambda engine: (plugin not in (None, engine.plugin_sha256), engine != now),
        default=None,
    )


def _check_python(order: InstallRequest, base: places.InstalledEngine, world: InstallWorld) -> None:
    """Refuse a --python other than the one the installed engine, which is used unchanged, was made
    with."""
    if order.python is None:
        return
    named = named_python(order.lock.python, order.python, world.run, public=order.public)
    made_with = (base.path / "bin" / "python").resolve()
    if named is not None and named.path.resolve() != made_with:
        raise EngineError(
            f"install {order.lock.name} with {order.python}",
            f"{base.name} is installed already, with {made_with}",
            "leave out --python to use it, or add --again to install a second copy",
        )


def _choose_folder(order: InstallRequest) -> Path:
    """Choose a folder name that no finished engine of another lock has taken."""
    number = 1
    while True:
        name = order.lock.name if number == 1 else f"{order.lock.name}.{number}"
        if places.read(order.root / name) is None:
            return order.root / name
        number += 1


def _fill(
    order: InstallRequest, path: Path, base: places.InstalledEngine | None, world: InstallWorld
) -> None:
    """Steps 1 to 4: fill an environment from the lock's wheels, or from `base`."""
    journal = Journal(path, order.lock.digest)
    folder = wheels.Folder(order.offline or order.root / ".wheels")
    if "fill" in journal.completed_steps():
        return
    if base is not None:
        world.say(f"[1-4] copying {base.name}, which has the same packages, as links")
        _make_folder(path, journal)
        build.clone(base.path, path)
        journal.add("fill")
        return
    lock = order.lock
    world.say(f"[1/6] checking Python {lock.python} and disk space")
    if order.offline is not None:
        wheels.require_all(lock, folder)
    _check_disk(order, path, folder, world)
    python = find(
        lock.python,
        order.python,
        order.root,
        world.environ,
        world.run,
        public=order.public,
        offline=order.offline,
    )
    world.say(f"      {python.path}")
    if not python.public and os.geteuid() == 0:
        world.say("      note: only root can run this Python, not a service of another user")
    world.say(f"[2/6] making {path}")
    _make_folder(path, journal)
    build.make_venv(python.path, path, world)
    if order.offline is not None:
        world.say(f"[3/6] {order.offline} has all {len(lock.pins)} files")
    else:
        world.say(f"[3/6] downloading {len(lock.pins)} files, {lock.download_bytes // MIB} MiB")
    files = _get_files(order, path, world)
    packed = {name: wheel for name, wheel in files.items() if name not in lock.sources}
    world.say(f"[4/6] unpacking {len(packed)} wheels, {lock.disk_mib} MiB installed")
    build.unpack(lock, path, packed, world)
    site = next((path / "lib").glob("python3*/site-packages"))
    fix_records(site, (wheel.path for wheel in packed.values()))
    for fact in shared_files(Records(site).owners):
        raise EngineError(
            f"unpack the wheels into {path}",
            f"{fact}: which of them is installed is random",
            "the lock is at fault: install another version",
        )
    adapt(lock, site)
    build.compile_bytecode(path, site, world)
    toolkit.lay_out(path)
    (path / places.LOCK_COPY).write_text(lock.text, encoding="utf-8")
    journal.add("fill")


def _get_files(order: InstallRequest, path: Path, world: InstallWorld) -> dict[str, wheels.Wheel]:
    """Get all files of the lock, downloaded or from a folder, into a place where nobody else can
    change them."""
    own = wheels.Folder(order.root / ".wheels")
    if order.offline is None:
        wheels.download(order.lock, path / "bin" / "python", own, world.run, world.progress)
        return own.find(order.lock.pins)
    folder = wheels.Folder(order.offline)
    if trust.is_anothers(order.offline):
        return wheels.carry(order.lock, folder, own)
    return wheels.require_all(order.lock, folder)


def _make_folder(path: Path, journal: Journal) -> None:
    """Make an empty folder with a journal; discard our own half-filled one."""
    # a pip that was killed halfway leaves packages that the next one would take for complete
    if path.exists():
        if not (path / places.STEPS).exists():
            raise EngineError(
                f"make {path}",
                "something other than a caovan engine is there",
                "move it away, or choose another folder with --root DIR",
            )
        places.discard(path)
    path.mkdir()
    journal.begin()


def _check_disk(
    order: InstallRequest, path: Path, folder: wheels.Folder, world: InstallWorld
) -> None:
    """Refuse, before anything is written, if the disk has too little room."""
    needed = (MARGIN_MIB + order.lock.disk_mib) * MIB
    if order.offline is not None and trust.is_anothers(order.offline):
        needed += sum(pin.size_bytes for pin in order.lock.pins)
    if order.offline is None:
        have = folder.find(order.lock.pins)
        needed += sum(pin.size_bytes for pin in order.lock.pins if pin.name not in have)
    if path.is_dir():  # a half-filled tree is deleted first, which frees its space
        needed -= sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
    free = world.free_bytes(order.root)
    if free < needed:
        raise EngineError(
            f"install {order.lock.name}",
            f"{order.root} has {free // MIB} MiB free and {needed // MIB} MiB are needed",
            "make room, or choose another disk with --root DIR",
        )
