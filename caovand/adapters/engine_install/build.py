"""Fill an environment from local files alone: with venv, then pip or uv."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from caovand.adapters.engine_install import pip_errors
from caovand.adapters.engine_install.commands import InstallWorld, pip
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.lock import Lock
from caovand.adapters.engine_install.places import MARKER, STEPS
from caovand.adapters.engine_install.wheels import Wheel, sha256
from caovand.adapters.files import trust
from caovand.core.units import MIB

NEXT_TO_NOTHING_BYTES = 4 * MIB
COMPILE = Path(__file__).with_name("compile_in_env.py")


def make_venv(python: Path, path: Path, world: InstallWorld) -> None:
    """Create a virtual environment in an existing empty folder."""
    command = [str(python), "-I", "-m", "venv", str(path)]
    _run_or_raise(world, path, command, f"make {path}", f"check that {python} -m venv works")


def clone(source: Path, target: Path) -> None:
    """Fill `target`, which exists, from the environment `source` in seconds; raises OSError.

    Its files become hard links, which take almost no space. Neither pip nor Python's compiler
    writes into an existing file: both replace it, so changes in the copy do not reach the
    original. Files that contain the original's path are rewritten.
    """
    shutil.copytree(
        source,
        target,
        symlinks=True,
        copy_function=os.link,
        ignore=shutil.ignore_patterns(MARKER, STEPS),
        dirs_exist_ok=True,
    )
    mark = re.compile(re.escape(str(source)).encode() + rb"(?![\w.-])")
    for path in (target / "pyvenv.cfg", *(target / "bin").iterdir()):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if mark.search(data):
                part = path.with_name(f"{path.name}.new")
                part.write_bytes(mark.sub(str(target).encode().replace(b"\\", rb"\\"), data))
                shutil.copymode(path, part)
                part.replace(path)


def add_plugin(plugin: Path, path: Path, world: InstallWorld) -> None:
    """Install caovan's plugin, a wheel or a source folder, using only packages of the
    environment."""
    command = [
        *pip(path / "bin" / "python"),
        "install",
        "--no-cache-dir",
        "--no-index",
        "--no-deps",
        "--force-reinstall",
    ]
    if plugin.is_dir():
        command.append("--no-build-isolation")
    what = f"add the plugin {plugin}"
    _run_or_raise(world, path, [*command, str(plugin)], what, "check that it is complete")


def plugin_identity(plugin: Path) -> str:
    """Identify a plugin's state by a sha256 of its files."""
    if plugin.is_file():
        return sha256(plugin)
    digest = hashlib.sha256()
    for file in sorted(plugin.rglob("*")):
        if file.is_file() and file.suffix in (".py", ".so", ".toml") and "build" not in file.parts:
            digest.update(f"{file.relative_to(plugin)} {sha256(file)}\n".encode())
    return digest.hexdigest()


def unpack(lock: Lock, path: Path, files: Mapping[str, Wheel], world: InstallWorld) -> None:
    """Install the wheels from disk alone, checking their hashes again."""
    # List each file: the folder may also hold wheels of other versions.
    wanted = path / "wheels.txt"
    wanted.write_text(
        "".join(
            f"{name} @ {wheel.path.resolve().as_uri()} --hash=sha256:{wheel.sha256}\n"
            for name, wheel in files.items()
        ),
        encoding="utf-8",
    )
    uv = trust.program("uv", world.environ)
    if uv is not None:  # several times as fast as pip
        # a cache on the same disk lets uv link files rather than copy them
        command = [uv, "pip", "install", "--python", str(path / "bin" / "python"), "--offline"]
        command += ["--no-config", "--cache-dir", str(path / "uv-cache"), "--no-progress"]
    else:
        command = [*pip(path / "bin" / "python"), "install", "--no-cache-dir", "--no-compile"]
    command += ["--no-deps", "--no-index", "--require-hashes", "-r", str(wanted)]
    total = lock.disk_mib * MIB
    before, most = world.free_bytes(path), 0

    def tick() -> None:
        nonlocal most  # others may free space meanwhile, so the use is a maximum
        most = max(most, min(before - world.free_bytes(path), total))
        world.progress(most, total, "unpacking")

    finished = world.run(command, _ALONE, tick)
    if finished.code:
        _refuse_full_disk(world, path, f"unpack the wheels into {path}")
        raise pip_errors.explain(f"unpack the wheels into {path}", finished)
    wanted.unlink()
    shutil.rmtree(path / "uv-cache", ignore_errors=True)


def compile_bytecode(path: Path, site: Path, world: InstallWorld) -> None:
    """Compile the unpacked Python files: a service of another user could not save the bytecode."""
    counted = path / "compiled.txt"

    def tick() -> None:
        with contextlib.suppress(OSError, ValueError):  # missing or half written
            done, total = map(int, counted.read_text(encoding="utf-8").split())
            world.progress(done, total, "compiling Python files")

    command = [str(path / "bin" / "python"), "-I", str(COMPILE), str(site), str(counted)]
    finished = world.run(command, _ALONE, tick)
    if finished.code:
        _refuse_full_disk(world, path, f"compile the Python files in {path}")
        world.say("      note: not all Python files were compiled; the first start takes longer")
    counted.unlink(missing_ok=True)


# pip's and uv's own configuration must not add a source to the checked files
_ALONE = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
    "PIP_INDEX_URL": "",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_REQUIRE_VIRTUALENV": "",
    "PYTHONPATH": "",
    "PYTHONHOME": "",
    "UV_INDEX": "",
    "UV_DEFAULT_INDEX": "",
    "UV_FIND_LINKS": "",
    "UV_CONFIG_FILE": "",
}


def _run_or_raise(
    world: InstallWorld, path: Path, command: list[str], what: str, remedy: str
) -> None:
    finished = world.run(command, _ALONE, lambda: None)
    if finished.code:
        _refuse_full_disk(world, path, what)
        last = (finished.output.strip() or "nothing").splitlines()[-1]
        raise EngineError(what, f"it ended with status {finished.code} and printed: {last}", remedy)


def _refuse_full_disk(world: InstallWorld, path: Path, what: str) -> None:
    # ask the disk itself: venv, for one, does not report why its pip died
    if world.free_bytes(path) < NEXT_TO_NOTHING_BYTES:
        raise EngineError(what, "the disk is full", "make room and run the command again")
