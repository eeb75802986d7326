"""Build an engine from a lock, in steps that can be interrupted anywhere.

The environment is made at its final path. It counts only once `finish` has written its marker, and
is used only once `current` has been switched after that; until then nothing that works has been
touched. A repeated installation resumes: wheels are recognised by their content, the filled
environment by its journal, and a half-filled one is discarded and started again. An engine that
differs only by its plugin starts as a copy of hard links, in seconds. Packages that a lock has as
source are built between filling and proving.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from caovand.adapters.engine_install import environment, from_source, places, toolkit, wheels
from caovand.adapters.engine_install.commands import InstallWorld
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.from_source import BuildOptions, check_compiler
from caovand.adapters.engine_install.lock import Lock
from caovand.adapters.engine_install.places import Journal
from caovand.adapters.engine_install.prove import prove
from caovand.adapters.engine_install.pythons import find, named_python
from caovand.adapters.engine_install.records import Records, find_shared_files, fix_records
from caovand.adapters.files import safe_files, trust
from caovand.core.engine.install import Source
from caovand.core.units import MIB
from caovand.engines import registry

MARGIN_MIB = 512
DOWNLOADS = ".wheels"
"""The folder in the root for the files of unfinished engines."""


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


def install(request: InstallRequest, world: InstallWorld) -> places.InstalledEngine:
    """Make the engine, prove it and switch to it; if an identical one exists, only switch.

    Raises EngineError; after any exception the engine in use is the same as before.
    """
    lock, root = request.lock, request.root
    plugin = environment.plugin_identity(request.plugin) if request.plugin else None
    with safe_files.readable_by_all(), places.locked(root, f"install {lock.name}"):
        places.sweep(root)
        base = None if request.again else _find_equal(request, plugin)
        if base is not None:
            _check_python(request, base, world)
        if base is not None and plugin in (None, base.plugin_sha256):
            engine = base
            now = places.current(root, lock.kind)
            if now is None or base.name != now.name:
                prove(lock, base.path, world.run, plugin=base.plugin is not None)
                places.switch(root, base.name)
            world.say(f"{base.name} is installed already (--again installs a second copy)")
        else:
            engine = _make(request, base, plugin, world)
            places.finish(engine)
            places.switch(root, engine.name)
        _drop_wheels(request)
    return engine


def _make(
    request: InstallRequest,
    base: places.InstalledEngine | None,
    plugin_sha256: str | None,
    world: InstallWorld,
) -> places.InstalledEngine:
    """Steps 1 to 6: fill an environment, from `base` if there is one, and prove it."""
    lock = request.lock
    source = registry.engine_of(lock.kind).install.source
    if source is not None:
        check_compiler(lock, world.environ)
    path = _choose_folder(request)
    _fill(request, path, base, world)
    if source is not None:
        _build(source, request, path, world)
    elif request.plugin is None:
        world.say(f"[5/6] no plugin: the engine is plain {lock.title}")
    else:
        world.say(f"[5/6] adding caovan's plugin from {request.plugin}")
        environment.add_plugin(request.plugin, path, world)
    how = "two completions" if source is not None else f"importing {lock.title} in it"
    world.say(f"[6/6] checking that {path.name} runs: {how}")
    proof = prove(lock, path, world.run, plugin=request.plugin is not None)
    for note in proof.notes:
        world.say(f"      note: {note}")
    return places.InstalledEngine(
        name=path.name,
        path=path,
        kind=lock.kind,
        version=proof.version,
        build=lock.build,
        python=proof.python,
        torch=proof.torch,
        plugin=proof.plugin,
        plugin_sha256=plugin_sha256,
        lock_sha256=lock.digest,
        made_at=world.now().isoformat(timespec="seconds"),
        cards=request.compilers.named_cards,
    )


def _build(source: Source, request: InstallRequest, path: Path, world: InstallWorld) -> None:
    """Step 5 of an engine that is built here; completed once, despite interruptions."""
    lock, journal = request.lock, Journal(path, request.lock.digest)
    step = " ".join(("build", *request.compilers.named_cards))
    if step in journal.completed_steps():
        return
    jobs = request.compilers.jobs
    world.say(f"[5/6] building {source.target}, some minutes: {jobs} compilers at once")
    archive = _get_files(request, path, world)[source.package]
    from_source.build(source, lock, path, archive, request.compilers, world)
    journal.add(step)


def _drop_wheels(request: InstallRequest) -> None:
    """Delete the files that were downloaded for this engine; another lock's downloads stay."""
    folder = wheels.Folder(request.root / DOWNLOADS)
    for wheel in folder.find(request.lock.pins).values():
        wheel.unlink()
    with contextlib.suppress(OSError):
        folder.path.rmdir()


def _find_equal(request: InstallRequest, plugin: str | None) -> places.InstalledEngine | None:
    """Find a finished engine of the same lock: preferably with this plugin, then the one in use.

    An engine that was built here must be for these cards.
    """
    cards = set(request.compilers.named_cards)
    equal = [
        engine
        for engine in places.engines(request.root)
        if engine.lock_sha256 == request.lock.digest and cards <= set(engine.cards)
    ]
    now = places.current(request.root, request.lock.kind)
    name = now and now.name
    return min(
        equal,
        key=lambda engine: (plugin not in (None, engine.plugin_sha256), engine.name != name),
        default=None,
    )


def _check_python(
    request: InstallRequest, base: places.InstalledEngine, world: InstallWorld
) -> None:
    """Refuse a --python other than the one that the installed engine was made with.

    That engine is used unchanged.
    """
    if request.python is None:
        return
    named = named_python(request.lock.python, request.python, world.run, public=request.public)
    made_with = (base.path / "bin" / "python").resolve()
    if named is not None and named.path.resolve() != made_with:
        raise EngineError(
            f"install {request.lock.name} with {request.python}",
            f"{base.name} is installed already, with {made_with}",
            "omit --python to use it, or add --again to install a second copy",
        )


def _choose_folder(request: InstallRequest) -> Path:
    """Choose a folder name that no finished engine of another lock has taken."""
    first = request.lock.name
    names = itertools.chain([first], (f"{first}.{number}" for number in itertools.count(2)))
    return next(request.root / name for name in names if places.read(request.root / name) is None)


def _fill(
    request: InstallRequest, path: Path, base: places.InstalledEngine | None, world: InstallWorld
) -> None:
    """Steps 1 to 4: fill an environment from the lock's wheels, or from `base`."""
    lock, journal = request.lock, Journal(path, request.lock.digest)
    if "fill" in journal.completed_steps():
        return
    if base is not None:
        world.say(f"[1-4] hard-linking {base.name}, which has the same packages")
        _make_folder(path, journal)
        environment.clone(base.path, path)
    else:
        world.say(f"[1/6] checking Python {lock.python} and disk space")
        python = _check_machine(request, path, world)
        world.say(f"[2/6] making {path}")
        _make_folder(path, journal)
        environment.make_venv(python, path, world)
        source = f"{request.offline} has all {len(lock.pins)} files"
        if request.offline is None:
            source = f"downloading {len(lock.pins)} files, {lock.download_bytes // MIB} MiB"
        world.say(f"[3/6] {source}")
        files = _get_files(request, path, world)
        world.say(f"[4/6] unpacking {len(lock.wheels)} wheels, {lock.disk_mib} MiB installed")
        _unpack(lock, path, files, world)
    journal.add("fill")


def _check_machine(request: InstallRequest, path: Path, world: InstallWorld) -> Path:
    """Refuse, before anything is written, what cannot succeed; find the Python to use."""
    folder = wheels.Folder(request.offline or request.root / DOWNLOADS)
    if request.offline is not None:
        wheels.require_all(request.lock, folder)
    _check_disk(request, path, folder, world)
    python = find(
        request.lock.python,
        request.python,
        request.root,
        world.environ,
        world.run,
        public=request.public,
        offline=request.offline,
    )
    world.say(f"      {python.path}")
    if not python.public and os.geteuid() == 0:
        world.say("      note: only root can run this Python, not a service of another user")
    return python.path


def _unpack(lock: Lock, path: Path, files: Mapping[str, Path], world: InstallWorld) -> None:
    """Step 4: install the wheels, adapt them, and lay out what belongs to the engine."""
    environment.unpack(lock, path, files, world)
    site = places.site_packages(path)
    fix_records(site, (files[pin.name] for pin in lock.wheels))
    if shared := next(find_shared_files(Records(site).owners), None):
        raise EngineError(
            f"unpack the wheels into {path}",
            f"{shared}: which copy gets installed is random",
            "the lock is faulty: install another version",
        )
    environment.adapt(lock, site)
    environment.compile_bytecode(path, site, world)
    toolkit.lay_out(path)
    (path / places.LOCK_COPY).write_text(lock.text, encoding="utf-8")


def _get_files(request: InstallRequest, path: Path, world: InstallWorld) -> dict[str, Path]:
    """Get all files of the lock, downloaded or from a folder, where nobody else can change them."""
    own = wheels.Folder(request.root / DOWNLOADS)
    if request.offline is None:
        python = path / "bin" / "python"
        return wheels.download(request.lock, python, own, world.run, world.progress)
    folder = wheels.Folder(request.offline)
    if trust.is_anothers(request.offline):
        return wheels.copy_all(request.lock, folder, own)
    return wheels.require_all(request.lock, folder)


def _make_folder(path: Path, journal: Journal) -> None:
    """Make an empty folder with a journal; discard our own half-filled one."""
    # a pip that was killed halfway leaves packages that the next one would take for complete
    if path.exists():
        if not (path / places.STEPS).exists():
            raise EngineError(
                f"make {path}",
                "it exists and is not a caovan engine",
                "move it elsewhere, or choose another folder with --root DIR",
            )
        places.discard(path)
    path.mkdir()
    journal.begin()


def _check_disk(
    request: InstallRequest, path: Path, folder: wheels.Folder, world: InstallWorld
) -> None:
    """Refuse an installation for which the disk has too little space."""
    lock, root = request.lock, request.root
    needed = (MARGIN_MIB + lock.disk_mib) * MIB
    if request.offline is None:
        here = folder.find(lock.pins)
        needed += sum(pin.size_bytes for pin in lock.pins if pin.name not in here)
    elif trust.is_anothers(request.offline):
        needed += lock.download_bytes
    if path.is_dir():  # a half-filled tree is deleted first, which frees its space
        needed -= sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
    free = world.free_bytes(root)
    if free < needed:
        raise EngineError(
            f"install {lock.name}",
            f"{root} has {free // MIB} MiB free, but {needed // MIB} MiB are needed",
            "free some space, or choose another disk with --root DIR",
        )
