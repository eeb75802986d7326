"""Build an engine's program from its lock's source archive, with the lock's CMake and ninja.

Only the C++ compiler belongs to the system. The program is built in a folder of the engine that is
deleted afterwards. A package with the archive's name then owns the program, so that `engine verify`
checks it like any other file.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from caovand.adapters.engine_install import toolkit
from caovand.adapters.engine_install.commands import Finished, InstallWorld
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.lock import Lock
from caovand.adapters.engine_install.places import site_packages
from caovand.adapters.engine_install.records import write_dist_info
from caovand.adapters.files import trust
from caovand.core.engine.install import Source

FOLDER = "build"
_CAUSE_MARKERS = ("fatal error:", "cannot find", "error:", "CMake Error", "FAILED:")
"""Markers of a line that names the cause, the most specific first."""


@dataclass(frozen=True)
class BuildOptions:
    """How many compilers may run in parallel, and the cards that a CUDA build is for: ((7, 5),
    ...)."""

    jobs: int = 1
    cards: tuple[tuple[int, int], ...] = ()

    @property
    def named_cards(self) -> tuple[str, ...]:
        """The cards in their usual notation: 7.5."""
        return tuple(f"{major}.{minor}" for major, minor in self.cards)


def check_compiler(lock: Lock, environ: Mapping[str, str]) -> str:
    """Return the system's C++ compiler; raises EngineError, before any download, if there is
    none."""
    for name in (environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and (compiler := trust.program(name, environ)):
            return compiler
    raise EngineError(
        f"build {lock.name}",
        "there is no C++ compiler on this machine",
        "sudo apt install g++",
    )


def build(
    source: Source,
    lock: Lock,
    path: Path,
    archive: Path,
    compilers: BuildOptions,
    world: InstallWorld,
) -> None:
    """Build the program from its archive into ENGINE/bin; an interrupted build resumes."""
    work = path / FOLDER
    tree, out = work / "source", work / "out"
    if not tree.exists():
        unpack(archive, tree, f"build {lock.name}")
    environ = _environment(path, lock, compilers)
    _run_or_raise(world, work, _configuration(source, lock, path, compilers, world), environ)
    ninja = [str(path / "bin" / "ninja"), "-C", str(out)]
    log = out / ".ninja_log"
    before = _count_done(log)
    total = _count_steps(world.run([*ninja, "-n", source.target], environ, _do_nothing))

    def tick() -> None:
        done = min(max(_count_done(log) - before, 0), total)
        world.progress(done, total, f"compiling {source.target}")

    _run_or_raise(world, work, [*ninja, f"-j{compilers.jobs}", source.target], environ, tick)
    tick()
    program = path / "bin" / source.target
    next(file for file in out.rglob(source.target) if file.is_file()).replace(program)
    write_dist_info(site_packages(path), source.package, lock.version, [program])
    shutil.rmtree(work)


def _configuration(
    source: Source, lock: Lock, path: Path, compilers: BuildOptions, world: InstallWorld
) -> list[str]:
    """The command line by which CMake configures the build."""
    work = path / FOLDER
    prelude = work / "prelude.cmake"
    prelude.write_text(source.prelude, encoding="utf-8")
    options = source.options(lock.build, lock.version)
    if lock.build == "cuda":
        cards = ";".join(f"{major}{minor}-real" for major, minor in compilers.cards)
        options += (f"-DCMAKE_CUDA_ARCHITECTURES={cards}",)
        options += (f"-DCUDAToolkit_ROOT={path / toolkit.FOLDER}",)
    return [
        *(str(path / "bin" / "cmake"), "-S", str(work / "source" / source.folder)),
        *("-B", str(work / "out"), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"),
        f"-DCMAKE_MAKE_PROGRAM={path / 'bin' / 'ninja'}",
        f"-DCMAKE_CXX_COMPILER={check_compiler(lock, world.environ)}",
        f"-DCMAKE_PROJECT_TOP_LEVEL_INCLUDES={prelude}",
        *options,
    ]


def _count_done(log: Path) -> int:
    """Count the steps that ninja has done; the log's first line is a title."""
    return log.read_bytes().count(b"\n") if log.is_file() else 1


def _do_nothing() -> None:
    """Do nothing, while a short command runs."""


def _environment(path: Path, lock: Lock, compilers: BuildOptions) -> dict[str, str]:
    """The compilers' environment: the lock's tools first, without the user's flags."""
    environ = dict.fromkeys(("CXXFLAGS", "CFLAGS", "LDFLAGS", "CMAKE_GENERATOR"), "")
    environ |= {"PYTHONPATH": "", "PYTHONHOME": "", "NINJA_STATUS": "[%f/%t] "}
    environ |= {"CMAKE_BUILD_PARALLEL_LEVEL": str(compilers.jobs)}
    home = toolkit.lay_out(path) if lock.build == "cuda" else None
    if home is not None:
        environ |= {"CUDACXX": str(home / "bin" / "nvcc"), "CUDA_PATH": str(home)}
        # nvcc looks for its libraries next to the target of `bin`, where there is no lib64
        environ |= {"LIBRARY_PATH": str(home / "lib64")}
    return environ


def unpack(archive: Path, place: Path, what: str) -> None:
    """Extract an archive, whose hash was checked, and make its single folder the folder `place`."""
    part = place.with_name(f"{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if member.name.startswith("/") or ".." in parts or member.isdev():
                raise EngineError(
                    what, f"{archive.name} has the entry {member.name}", "report this to caovan"
                )
            # directories come with their files; links lead nowhere that a build needs
            if (data := tar.extractfile(member) if member.isfile() else None) is not None:
                target = part / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with data, target.open("wb") as file:
                    shutil.copyfileobj(data, file)
    next(part.iterdir()).rename(place)
    part.rmdir()


def _count_steps(dry: Finished) -> int:
    """Count the steps that a dry run of ninja prints."""
    last = (dry.output.strip() or "[0/1]").splitlines()[-1]
    try:
        return max(int(last.partition("/")[2].partition("]")[0]), 1)
    except ValueError:
        return 1


def _run_or_raise(
    world: InstallWorld,
    work: Path,
    command: list[str],
    environ: Mapping[str, str],
    tick: Callable[[], None] = _do_nothing,
) -> None:
    finished = world.run(command, environ, tick)
    if finished.code == 0:
        return
    lines = [line.strip() for line in finished.output.splitlines() if line.strip()] or ["nothing"]
    marked = (line for mark in _CAUSE_MARKERS for line in lines if mark in line)
    cause = next(marked, lines[-1])
    remedy = "run the command again; compiled parts are kept"
    if "No space left on device" in finished.output:
        cause, remedy = "the disk is full", "free some space and run the command again"
    elif "Killed signal" in finished.output:
        cause = "a compiler was killed, most likely because memory ran out"
        remedy = "run the command again with fewer compilers: --jobs 1"
    else:
        (work / "log").write_text(finished.output, encoding="utf-8")
        remedy += f"; the whole output is in {work / 'log'}"
    raise EngineError(
        f"build {work.parent.name}", f"{Path(command[0]).name} reported: {cause}", remedy
    )
