"""Find the Python that makes an engine's environment, or install it with uv.

uv does not search: it would run every Python on PATH to query it, for root even one that another
user can change, and few systems have uv.

A Python that uv installs goes into the engines' root, where a service of another user can read it.
If uv is missing, pip installs it temporarily. uv downloads a Python from GitHub, or from
`UV_PYTHON_INSTALL_MIRROR`, and checks the sha256 of every Python that it offers. So a folder for an
offline machine gets the archive, and a uv whose own sha256 is part of caovan: the folder's owner
cannot smuggle in another Python.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from caovand.adapters.engine_install.commands import RunCommand, last_line, pip
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.lock import lock_folders
from caovand.adapters.files import safe_files, trust

ARCHIVES = ".python-archives"
# Runs in the candidate itself; _base_executable points outside a virtual environment.
_QUERY = (
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
            f"this machine is {machine}, but the lock's files are for x86_64",
            "create an environment by hand and set [engine] python to its Python",
        )
    if chosen is not None and (named := named_python(version, chosen, run, public=public)):
        return named
    suitable = [
        python
        for path in candidates(version, root, environ)
        if (python := inspect(path, run)) is not None
        and python.version == version
        and (python.public or not public)
    ]
    if suitable:
        return min(suitable, key=lambda python: (not python.public, not python.headers))
    uv_python = UvPython(version, root, run)
    path = uv_python.download(environ) if offline is None else uv_python.install_from(offline)
    installed = inspect(path, run)
    if installed is None:
        raise EngineError(
            what,
            "the Python that uv installed does not run on this machine",
            "choose one with --python PATH",
        )
    if public and not installed.public:
        raise EngineError(
            what,
            f"the service's user cannot run {installed.path}",
            f"chmod o+x every folder above {root}",
        )
    return installed


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
                f"omit --python, or use --python {version}",
            )
        return None
    named = inspect(Path(chosen).absolute(), run) if Path(chosen).is_file() else None
    if named is None:
        raise EngineError(
            f"use {chosen}",
            "this Python cannot create virtual environments",
            f"choose version {version}, with its venv module",
        )
    if named.version != version:
        raise EngineError(
            f"use {chosen}",
            f"it is Python {named.version}, but this lock's files are for {version}",
            f"choose version {version}",
        )
    if public and not named.public:
        raise EngineError(
            f"use {chosen}",
            f"the service's user cannot run {named.path}, which lies in a private folder",
            "omit --python, or chmod o+x every folder above it",
        )
    return named


def candidates(version: str, root: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield existing Pythons of a version, best first; for root, only those safe to run."""
    name = f"python{version}"
    folders = ["/usr/bin", "/usr/local/bin", *environ.get("PATH", "").split(os.pathsep)]
    pyenv = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME", "/"), ".pyenv"))
    release = re.compile(rf"{re.escape(version)}\.\d+")
    folders += [
        str(folder / "bin")
        for folder in sorted(pyenv.glob("versions/*"), reverse=True)
        if release.fullmatch(folder.name)
    ]
    pythons = [Path(folder, name) for folder in folders if os.path.isabs(folder)]
    for python in dict.fromkeys([*pythons, *uv_pythons(version, root)]):
        if python.is_file() and (os.geteuid() != 0 or trust.find_doubt(python) is None):
            yield python


def inspect(path: Path, run: RunCommand) -> Interpreter | None:
    """Query a candidate's properties; None if it does not run or cannot make environments."""
    done = run([str(path), "-I", "-c", _QUERY], {"PYTHONHOME": "", "PYTHONPATH": ""}, lambda: None)
    lines = done.output.split("\n")
    if done.code != 0 or len(lines) < 4 or lines[2] != "x86_64":
        return None
    base = Path(lines[0])
    return Interpreter(base, lines[1], headers=lines[3] == "True", public=_is_public(base))


def _is_public(path: Path) -> bool:
    real = path.resolve()
    try:
        return all(folder.stat().st_mode & stat.S_IXOTH for folder in (real, *real.parents))
    except OSError:
        return False


def uv_pythons(version: str, root: Path) -> list[Path]:
    """List the Pythons that uv installed earlier, newest first."""
    pythons = (root / ".python").glob(f"cpython-{version}.*/bin/python{version}")
    return sorted(pythons, reverse=True)


def find_archives(version: str, folder: Path) -> list[Path]:
    """List the archives that `engine fetch --with-python` put into a folder."""
    return sorted((folder / ARCHIVES).glob(f"*cpython-{version}.*.tar.*"))


@dataclass(frozen=True)
class UvPython:
    """A Python of `version` ("3.12") for uv to install into `root`; raises EngineError."""

    version: str
    root: Path
    run: RunCommand

    def download(self, environ: Mapping[str, str], *, keep_archive: bool = False) -> Path:
        """Download it from GitHub or a mirror, and install it.

        With `keep_archive` its archive stays in the root for `install_from`, with the uv that knows
        its sha256.
        """
        if not keep_archive and (uv := trust.program("uv", environ)):
            return self._install(uv)
        archives = self.root / ARCHIVES if keep_archive else None
        try:
            with self._temporary_uv(archives) as uv:
                return self._install(uv, ["--reinstall"] * keep_archive, archives)
        except EngineError:
            if archives:
                shutil.rmtree(archives, ignore_errors=True)  # uv also keeps files that it refuses
            raise

    def install_from(self, folder: Path) -> Path:
        """Install it from what `engine fetch --with-python` put into a folder, checked by uv."""
        version, archives = self.version, self.root / ARCHIVES
        fetched = find_archives(version, folder)
        if not fetched:
            raise EngineError(
                f"find Python {version}",
                f"no usable one is here or in {folder}, and --wheels does not download",
                f"apt install {_packages(version)}, or choose one with --python PATH, or fill the "
                "folder with: caovanctl engine fetch --with-python",
            )
        try:
            # The folder's owner could change the files between their check and their use.
            shutil.rmtree(archives, ignore_errors=True)
            archives.mkdir(parents=True)
            for file in (*fetched, *(folder / ARCHIVES).glob("uv-*.whl")):
                safe_files.copy(file, archives / file.name)
            with self._temporary_uv(archives, offline=True) as uv:
                return self._install(uv, ["--offline"], archives)
        finally:
            shutil.rmtree(archives, ignore_errors=True)

    def _install(self, uv: str, options: Sequence[str] = (), archives: Path | None = None) -> Path:
        folders = {
            "UV_PYTHON_INSTALL_DIR": str(self.root / ".python"),
            "UV_PYTHON_BIN_DIR": str(self.root / ".python" / "bin"),
            "UV_PYTHON_CACHE_DIR": str(archives or ""),
        }
        command = [uv, "--no-config", "python", "install", *options, self.version]
        done = self.run(command, folders, lambda: None)
        installed = uv_pythons(self.version, self.root)
        if not installed or done.code:
            raise self._no_python(done.output)
        tree = installed[0].parents[1]
        if fact := find_unsafe(tree):
            shutil.rmtree(tree)
            raise EngineError(f"use the Python {tree.name}", fact, "do not trust its source")
        return installed[0]

    @contextlib.contextmanager
    def _temporary_uv(self, wheels: Path | None = None, *, offline: bool = False) -> Iterator[str]:
        """Install the uv whose sha256 is part of caovan, from its wheel in `wheels`, for a while.

        Unless `offline`, pip first downloads that wheel from its index.
        """
        lock = next((file for path in lock_folders() if (file := path / "uv.txt").is_file()), None)
        if lock is None:
            raise self._no_python("uv is not installed")
        environment, hashed = self.root / ".uv", ["--require-hashes", "-r", str(lock)]
        wheels = wheels or environment / "wheels"
        own_pip = pip(environment / "bin" / "python")
        commands = [
            [sys.executable, "-I", "-m", "venv", str(environment)],
            [*own_pip, "download", "--dest", str(wheels), *hashed],
            [*own_pip, "install", "--no-index", "--find-links", str(wheels), *hashed],
        ]
        if offline:
            del commands[1]
        try:
            for command in commands:
                done = self.run(command, {}, lambda: None)
                if done.code:
                    raise self._no_python(done.output)
            yield str(environment / "bin" / "uv")
        finally:
            shutil.rmtree(environment, ignore_errors=True)

    def _no_python(self, output: str) -> EngineError:
        cause = last_line(output, "no output")
        return EngineError(
            f"find Python {self.version}",
            f"no Python here has a working venv module, and uv could not install one ({cause})",
            f"apt install {_packages(self.version)}, or set UV_PYTHON_INSTALL_MIRROR to a mirror "
            "you can reach, or choose one with --python PATH",
        )


def _packages(version: str) -> str:
    """The distribution's packages of a Python that can make an engine's environment."""
    return f"python{version} python{version}-venv python{version}-dev"


def find_unsafe(tree: Path) -> str:
    """Name a file that no Python contains: setuid, a device, a link that leads outside; empty if
    none."""
    real = tree.resolve()
    for parent, folders, files in os.walk(tree):
        for path in (Path(parent, name) for name in (*folders, *files)):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                if not path.resolve().is_relative_to(real):
                    return f"{path} leads outside it"
            elif mode & (stat.S_ISUID | stat.S_ISGID):
                return f"{path} is set-user-ID or set-group-ID"
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                return f"{path} is not a regular file"
    return ""
