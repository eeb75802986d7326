"""Bring a Python to a system that has none of the version asked for: by uv.

uv itself is brought too where it is not installed, from pip's index, into the root. The Python
goes into the root as well, where a service of another user can read it. uv takes it from GitHub,
or from `UV_PYTHON_INSTALL_MIRROR`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from caovand.adapters import trust
from caovand.adapters.environment.commands import Run
from caovand.adapters.environment.errors import EngineError
from caovand.adapters.environment.lock import folders


def places_of(version: str, root: Path) -> list[Path]:
    """Where Pythons brought earlier are, newest first."""
    found = (root / ".python").glob(f"cpython-{version}.*/bin/python{version}")
    return sorted(found, reverse=True)


def bring(version: str, root: Path, environ: Mapping[str, str], run: Run) -> Path:
    """Install Python `version` ("3.12") into the root; EngineError says how to do without."""
    own = {
        "UV_PYTHON_INSTALL_DIR": str(root / ".python"),
        "UV_PYTHON_BIN_DIR": str(root / ".python" / "bin"),
    }
    tool = root / ".uv"
    try:
        uv = trust.program("uv", environ) or _bring_uv(version, tool, run)
        done = run([uv, "--no-config", "python", "install", version], own, lambda: None)
    finally:
        shutil.rmtree(tool, ignore_errors=True)
    found = places_of(version, root)
    if not found:
        raise _failed(version, done.output)
    return found[0]


def carry(version: str, folder: Path, root: Path) -> Path:
    """Copy the Python that `engine fetch --with-python` put into a folder into the root."""
    found = places_of(version, folder)
    if not found:
        raise EngineError(
            f"find Python {version}",
            f"no usable one is here nor in {folder}, and with --wheels nothing is downloaded",
            f"apt install python{version} python{version}-venv python{version}-dev, or give "
            "--python PATH, or fill the folder with: caovanctl engine fetch --with-python",
        )
    source = found[0].parents[1]
    target = root / ".python" / source.name
    part = target.with_name(f".part-{source.name}")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(source, part, symlinks=True)
    shutil.rmtree(target, ignore_errors=True)
    part.replace(target)
    return target / found[0].relative_to(source)


def _bring_uv(version: str, tool: Path, run: Run) -> str:
    wanted = next((path for one in folders() if (path := one / "uv.txt").is_file()), None)
    if wanted is None:
        raise _failed(version, "uv is not installed")
    made = run([sys.executable, "-I", "-m", "venv", str(tool)], {}, lambda: None)
    if made.code == 0:
        pip = [
            str(tool / "bin" / "python"),
            "-I",
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
        ]
        made = run([*pip, "--require-hashes", "-r", str(wanted)], {}, lambda: None)
    if made.code:
        raise _failed(version, made.output)
    return str(tool / "bin" / "uv")


def _failed(version: str, output: str) -> EngineError:
    last = (output.strip() or "it said nothing").splitlines()[-1].strip()
    return EngineError(
        f"find Python {version}",
        f"none with a working venv module is here and uv brought none ({last})",
        f"apt install python{version} python{version}-venv python{version}-dev, or set "
        "UV_PYTHON_INSTALL_MIRROR to a mirror you can reach, or give --python PATH",
    )
