"""Install a Python with uv on a system without the version that a lock needs.

If uv is missing, pip installs it temporarily. The Python goes into the engines' root, where a
service of another user can read it. uv downloads it from GitHub, or from
`UV_PYTHON_INSTALL_MIRROR`, and knows the sha256 of every Python it offers. So a folder for an
offline machine gets the archive, and a uv whose own sha256 is part of caovan: the folder's owner
cannot smuggle in another Python.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from caovand.adapters.engine_install.commands import RunCommand, pip
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.lock import lock_folders
from caovand.adapters.files import safe_files, trust

ARCHIVES = ".python-archives"


def places_of(version: str, root: Path) -> list[Path]:
    """List the Pythons that uv installed earlier, newest first."""
    found = (root / ".python").glob(f"cpython-{version}.*/bin/python{version}")
    return sorted(found, reverse=True)


def archives_of(version: str, folder: Path) -> list[Path]:
    """List the archives that `engine fetch --with-python` put into a folder."""
    return sorted((folder / ARCHIVES).glob(f"*cpython-{version}.*.tar.*"))


def acquire(
    version: str, root: Path, environ: Mapping[str, str], run: RunCommand, keep: bool = False
) -> Path:
    """Install Python `version` ("3.12") into the root; raises EngineError.

    `keep` is a folder in which its archive stays for `carry`, with the uv that knows its sha256.
    """
    if not keep and (own := trust.program("uv", environ)):
        return _install(version, root, own, run)
    archives = root / ARCHIVES if keep else None
    try:
        with _locked_uv(version, root, run, archives) as uv:
            return _install(version, root, uv, run, ["--reinstall"] * keep, archives)
    except EngineError:
        if archives:
            shutil.rmtree(archives, ignore_errors=True)  # uv also keeps files that it refuses
        raise


def carry(version: str, folder: Path, root: Path, run: RunCommand) -> Path:
    """Install the Python that `engine fetch --with-python` put into a folder, checked by uv."""
    found = archives_of(version, folder)
    if not found:
        raise EngineError(
            f"find Python {version}",
            f"there is no usable one here or in {folder}, and --wheels downloads nothing",
            f"apt install python{version} python{version}-venv python{version}-dev, or choose one "
            "with --python PATH, or fill the folder with: caovanctl engine fetch --with-python",
        )
    archives = root / ARCHIVES
    try:
        # The folder's owner could change the files between their check and their use.
        shutil.rmtree(archives, ignore_errors=True)
        archives.mkdir(parents=True)
        for file in (*found, *(folder / ARCHIVES).glob("uv-*.whl")):
            safe_files.copy(file, archives / file.name)
        with _locked_uv(version, root, run, archives, download=False) as uv:
            return _install(version, root, uv, run, ["--offline"], archives)
    finally:
        shutil.rmtree(archives, ignore_errors=True)


def _install(
    version: str,
    root: Path,
    uv: str,
    run: RunCommand,
    options: Sequence[str] = (),
    archives: Path | None = None,
) -> Path:
    own = {
        "UV_PYTHON_INSTALL_DIR": str(root / ".python"),
        "UV_PYTHON_BIN_DIR": str(root / ".python" / "bin"),
        "UV_PYTHON_CACHE_DIR": str(archives or ""),
    }
    done = run([uv, "--no-config", "python", "install", *options, version], own, lambda: None)
    found = places_of(version, root)
    if not found or done.code:
        raise _not_acquired(version, done.output)
    tree = found[0].parents[1]
    if fact := find_unsafe(tree):
        shutil.rmtree(tree)
        raise EngineError(f"use the Python {tree.name}", fact, "do not trust its source")
    return found[0]


def find_unsafe(tree: Path) -> str:
    """Name a file that no Python contains: setuid, a device, a link that leads outside; empty if
    none."""
    real = tree.resolve()
    for parent, inner, files in os.walk(tree):
        for path in (Path(parent, name) for name in (*inner, *files)):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                if not path.resolve().is_relative_to(real):
                    return f"{path} leads outside it"
            elif mode & (stat.S_ISUID | stat.S_ISGID):
                return f"{path} would run with its owner's rights for everybody"
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                return f"{path} is not a regular file"
    return ""


@contextlib.contextmanager
def _locked_uv(
    version: str, root: Path, run: RunCommand, wheels: Path | None = None, *, download: bool = True
) -> Iterator[str]:
    """Temporarily install the uv whose sha256 is part of caovan, from a wheel in `wheels`.

    With `download` pip first gets that wheel from its index.
    """
    wanted = next((path for one in lock_folders() if (path := one / "uv.txt").is_file()), None)
    if wanted is None:
        raise _not_acquired(version, "uv is not installed")
    tool, hashed = root / ".uv", ["--require-hashes", "-r", str(wanted)]
    wheels = wheels or tool / "wheels"
    tool_pip = pip(tool / "bin" / "python")
    commands = [
        [sys.executable, "-I", "-m", "venv", str(tool)],
        *([[*tool_pip, "download", "--dest", str(wheels), *hashed]] if download else []),
        [*tool_pip, "install", "--no-index", "--find-links", str(wheels), *hashed],
    ]
    try:
        for command in commands:
            done = run(command, {}, lambda: None)
            if done.code:
                raise _not_acquired(version, done.output)
        yield str(tool / "bin" / "uv")
    finally:
        shutil.rmtree(tool, ignore_errors=True)


def _not_acquired(version: str, output: str) -> EngineError:
    last = (output.strip() or "no output").splitlines()[-1].strip()
    return EngineError(
        f"find Python {version}",
        f"none here has a working venv module, and uv could not install one ({last})",
        f"apt install python{version} python{version}-venv python{version}-dev, or set "
        "UV_PYTHON_INSTALL_MIRROR to a mirror you can reach, or choose one with --python PATH",
    )
