"""Find the engine's Python: the system's, one on PATH, pyenv's, or one that uv installs."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from caovand.adapters.engine_install.acquire import acquire, carry, places_of
from caovand.adapters.engine_install.commands import RunCommand
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.files import trust

# Runs in the candidate itself; _base_executable points outside a virtual environment.
_ASK = (
    "import sys, sysconfig, platform, os\n"
    "import venv, ensurepip\n"
    "print(getattr(sys, '_base_executable', None) or sys.executable)\n"
    "print('%d.%d' % sys.version_info[:2])\n"
    "print(platform.machine())\n"
    "print(os.path.exists(os.path.join(sysconfig.get_paths()['include'], 'Python.h')))\n"
)


@dataclass(frozen=True)
class Interpreter:
    """A Python that can make an engine's environment.

    `headers`: whether it has Python.h, which Triton and Inductor compile against. `public`: whether
    another user can run it, as the service does.
    """

    path: Path
    version: str
    headers: bool
    public: bool


def candidates(version: str, root: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield existing Pythons of a version, best first; for root, only those safe to run."""
    name = f"python{version}"
    places = [Path("/usr/bin", name), Path("/usr/local/bin", name)]
    places += [
        Path(folder, name)
        for folder in environ.get("PATH", "").split(os.pathsep)
        if os.path.isabs(folder)
    ]
    pyenv = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME", "/"), ".pyenv"))
    wanted = re.compile(rf"{re.escape(version)}\.\d+")
    places += [
        folder / "bin" / name
        for folder in sorted(pyenv.glob("versions/*"), reverse=True)
        if wanted.fullmatch(folder.name)
    ]
    places += places_of(version, root)
    seen = set()
    for place in places:
        if place not in seen and place.is_file() and _may_run(place):
            seen.add(place)
            yield place


def inspect(path: Path, run: RunCommand) -> Interpreter | None:
    """Ask a candidate for its properties; None if it does not run or cannot make environments."""
    done = run([str(path), "-I", "-c", _ASK], {"PYTHONHOME": "", "PYTHONPATH": ""}, lambda: None)
    lines = done.output.split("\n")
    if done.code != 0 or len(lines) < 4 or lines[2] != "x86_64":
        return None
    base = Path(lines[0])
    return Interpreter(base, lines[1], headers=lines[3] == "True", public=_is_public(base))


def _may_run(place: Path) -> bool:
    return os.geteuid() != 0 or trust.find_doubt(place) is None


def _is_public(path: Path) -> bool:
    real = path.resolve()
    try:
        return all(folder.stat().st_mode & stat.S_IXOTH for folder in (real, *real.parents))
    except OSError:
        return False


def named_python(
    version: str, chosen: str, run: RunCommand, *, public: bool = False
) -> Interpreter | None:
    """The interpreter that --python names; None if it only repeats the lock's version.

    Raises EngineError if it cannot make an environment of this lock.
    """
    if re.fullmatch(r"[\d.]+", chosen):
        if chosen != version:
            raise EngineError(
                f"use Python {chosen}",
                f"this lock's files are for Python {version}",
                f"leave out --python, or use --python {version}",
            )
        return None
    named = inspect(Path(chosen).absolute(), run) if Path(chosen).is_file() else None
    if named is None:
        raise EngineError(
            f"use {chosen}",
            "it is not a Python that can make environments",
            f"choose one of version {version}, with its venv module",
        )
    if named.version != version:
        raise EngineError(
            f"use {chosen}",
            f"it is Python {named.version} and this lock's files are for {version}",
            f"choose one of version {version}",
        )
    if public and not named.public:
        raise EngineError(
            f"use {chosen}",
            f"the service's user cannot run {named.path}, which lies in a private folder",
            "leave out --python, or chmod o+x every folder above it",
        )
    return named


def find(
    version: str,
    chosen: str | None,
    root: Path,
    environ: Mapping[str, str],
    run: RunCommand,
    *,
    public: bool = False,
    offline: Path | None = None,
) -> Interpreter:
    """Find the best Python of `version` ("3.12"): usable by others first, then with headers.

    `chosen` is the value of --python. If none here is suitable, one is installed into the root:
    from the folder `offline` if that is set, and then never over the network. With `public` a
    Python that only its owner can run counts as missing.
    """
    what = f"find Python {version}"
    if (machine := os.uname().machine) != "x86_64":
        raise EngineError(
            what,
            f"this machine is {machine} and the lock's files are for x86_64",
            "make an environment by hand and set [engine] python to its Python",
        )
    if chosen is not None and (named := named_python(version, chosen, run, public=public)):
        return named
    found = [
        python
        for place in candidates(version, root, environ)
        if (python := inspect(place, run)) is not None
        and python.version == version
        and (python.public or not public)
    ]
    if found:
        return min(found, key=lambda python: (not python.public, not python.headers))
    if offline is not None:
        place = carry(version, offline, root, run)
    else:
        place = acquire(version, root, environ, run)
    acquired = inspect(place, run)
    if acquired is None:
        raise EngineError(
            what, "the Python that uv installed does not run here", "choose one with --python PATH"
        )
    if public and not acquired.public:
        raise EngineError(
            what,
            f"the service's user cannot run {acquired.path}",
            f"chmod o+x every folder above {root}",
        )
    return acquired
