"""Fill an environment from local files alone, with venv and pip or uv, and adapt it.

Each adaptation was found necessary by running the engine, keeps RECORDs correct and has no effect
the second time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from caovand.adapters.engine_install.commands import Finished, InstallWorld, last_line, pip
from caovand.adapters.engine_install.errors import EngineError, explain_pip
from caovand.adapters.engine_install.lock import Lock
from caovand.adapters.engine_install.places import MARKER, STEPS
from caovand.adapters.engine_install.records import append_code, write_dist_info
from caovand.adapters.engine_install.wheels import sha256
from caovand.adapters.files import trust
from caovand.core.units import MIB

FULL_DISK_BYTES = 4 * MIB
# torchvision's compiled part does not load with torch's CPU build; its Python part, which every
# Qwen3.5-family class imports, only needs two operators declared.
_SCHEMAS = """

if not _has_ops():  # caovan: schemas only
    _caovan_library = torch.library.Library("torchvision", "DEF")
    for _caovan_name in ("nms", "qnms"):
        _caovan_library.define(
            _caovan_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
"""
# vLLM's own truncates floats to integers and writes into a copy of its output: drafted tokens then
# get whatever temperature was in memory, also for greedy requests in the same batch.
_EXPAND = """

def _expand_kernel_impl(  # caovan: the output, and of floats
    output, input_val, cu_num_tokens, replace_from, replace_to, MAX_NUM_TOKENS=None
):
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    replaced = input_val.masked_fill(input_val == replace_from, replace_to)
    output.copy_(torch.repeat_interleave(replaced, counts.long()))
"""
# adaptation -> the module to change, and the code to append to it
_APPENDED_CODE = {
    "torchvision-schemas": ("torchvision/extension.py", _SCHEMAS),
    "vllm-expand": ("vllm/utils/cpu_triton_utils.py", _EXPAND),
}
# pip's and uv's own configuration must not add a source to the checked files
_NO_CONFIGURATION = {
    "PIP_CONFIG_FILE": os.devnull,
    **dict.fromkeys(("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"), ""),
    **dict.fromkeys(("PIP_REQUIRE_VIRTUALENV", "PYTHONPATH", "PYTHONHOME"), ""),
    **dict.fromkeys(("UV_INDEX", "UV_DEFAULT_INDEX", "UV_FIND_LINKS", "UV_CONFIG_FILE"), ""),
}


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


def unpack(lock: Lock, path: Path, files: Mapping[str, Path], world: InstallWorld) -> None:
    """Install the lock's wheels from disk alone, and check their hashes again.

    `files`: pin name -> file. Each is listed: its folder may also hold wheels of other versions.
    """
    requirements = path / "wheels.txt"
    lines = []
    for pin in lock.wheels:
        file = files[pin.name].resolve()
        digest = pin.sha256[0]
        if len(pin.sha256) > 1 and (actual := sha256(file)) in pin.sha256:
            digest = actual
        lines.append(pin.requirement_from(file, digest))
    requirements.write_text("\n".join(lines) + "\n", encoding="utf-8")
    uv = trust.program("uv", world.environ)
    if uv is not None:  # several times as fast as pip
        # a cache on the same disk lets uv link files rather than copy them
        command = [uv, "pip", "install", "--python", str(path / "bin" / "python"), "--offline"]
        command += ["--no-config", "--cache-dir", str(path / "uv-cache"), "--no-progress"]
    else:
        command = [*pip(path / "bin" / "python"), "install", "--no-cache-dir", "--no-compile"]
    command += ["--no-deps", "--no-index", "--require-hashes", "-r", str(requirements)]
    total = lock.disk_mib * MIB
    free_before, max_used = world.free_bytes(path), 0

    def tick() -> None:
        nonlocal max_used  # others may free space meanwhile
        max_used = max(max_used, min(free_before - world.free_bytes(path), total))
        world.progress(max_used, total, "unpacking")

    finished = _run(world, path, command, f"unpack the wheels into {path}", tick)
    if finished.code:
        raise explain_pip(f"unpack the wheels into {path}", finished)
    requirements.unlink()
    shutil.rmtree(path / "uv-cache", ignore_errors=True)


def adapt(lock: Lock, site: Path) -> None:
    """Apply the lock's `adapt` line to a site-packages folder."""
    for step in lock.adapt:
        if step == "vllm-distribution":
            # vLLM asks for the version of a distribution named "vllm" and picks its platform by
            # the "cpu" in it
            write_dist_info(site, "vllm", f"{lock.version}+cpu")
            continue
        name, code = _APPENDED_CODE[step]
        append_code(site, name, code)


def compile_bytecode(path: Path, site: Path, world: InstallWorld) -> None:
    """Compile the unpacked Python files: a service of another user could not save the bytecode."""
    total = _count_files(site, ".py")

    def tick() -> None:
        compiled = min(_count_files(site, ".pyc"), total)
        world.progress(compiled, total, "compiling Python files")

    python, jobs = str(path / "bin" / "python"), str(len(os.sched_getaffinity(0)))
    command = [python, "-W", "ignore", "-I", "-m", "compileall", "-qq", "-j", jobs, str(site)]
    finished = _run(world, path, command, f"compile the Python files in {path}", tick)
    # status 1 alone is harmless: some packages ship files for other Pythons, which do not compile
    if finished.code < 0 or finished.output.strip():
        world.say("      note: not all Python files were compiled; the first start takes longer")


def _count_files(folder: Path, suffix: str) -> int:
    return sum(name.endswith(suffix) for _, _, names in os.walk(folder) for name in names)


def add_plugin(plugin: Path, path: Path, world: InstallWorld) -> None:
    """Install caovan's plugin, a wheel or a source folder, using only packages of the
    environment."""
    command = [*pip(path / "bin" / "python"), "install", "--no-cache-dir", "--no-index"]
    command += ["--no-deps", "--force-reinstall", *["--no-build-isolation"] * plugin.is_dir()]
    what = f"add the plugin {plugin}"
    _run_or_raise(world, path, [*command, str(plugin)], what, "check that the plugin is complete")


def plugin_identity(plugin: Path) -> str:
    """Identify a plugin's state by a sha256 of its files."""
    if plugin.is_file():
        return sha256(plugin)
    digest = hashlib.sha256()
    for file in sorted(plugin.rglob("*")):
        if file.is_file() and file.suffix in (".py", ".so", ".toml") and "build" not in file.parts:
            digest.update(f"{file.relative_to(plugin)} {sha256(file)}\n".encode())
    return digest.hexdigest()


def _run_or_raise(
    world: InstallWorld, path: Path, command: list[str], what: str, remedy: str
) -> None:
    finished = _run(world, path, command, what)
    if finished.code:
        last = last_line(finished.output)
        raise EngineError(
            what, f"it exited with status {finished.code} and printed: {last}", remedy
        )


def _run(
    world: InstallWorld,
    path: Path,
    command: list[str],
    what: str,
    tick: Callable[[], None] = lambda: None,
) -> Finished:
    """Run a command that writes into the environment; raises EngineError if it filled the disk."""
    finished = world.run(command, _NO_CONFIGURATION, tick)
    # ask the disk itself: venv, for one, does not report why its pip died
    if finished.code and world.free_bytes(path) < FULL_DISK_BYTES:
        raise EngineError(what, "the disk is full", "free some space and run the command again")
    return finished
