"""Build the kernels that every start would otherwise compile, into ENGINE/kernels/sm75 for SM75.

FlashInfer loads a module from there unchanged, whatever else is installed. Its own cache of
compiled modules would not do: before it loads one from there it runs ninja, which compiles anew
where the compiler, a header's date or the engine's folder has changed, and it writes into it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from caovand.adapters.engine_install import toolkit
from caovand.adapters.engine_install.commands import Finished, InstallWorld
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.places import InstalledEngine, find_processes, site_packages
from caovand.adapters.files import safe_files, trust
from caovand.core.engine.record import CompiledKernel

FOLDER = "kernels"
_WORK = ".building"
_SCRIPT = Path(__file__).with_name("kernels_in_env.py")
_SHIM = Path(__file__).with_name("flashinfer_jit_cache.py")
_INHERITED_VARIABLES = frozenset({"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ"})
"""The variables of our environment that compilers inherit, with PATH. The engine's Python may need
LD_LIBRARY_PATH. Other variables name programs, flags, headers, libraries and cards; there are too
many to list."""


@dataclass(frozen=True)
class BuiltKernel:
    """A module that was just built, its size and the seconds that it took."""

    label: str
    seconds: float
    size_bytes: int


def build(
    engine: InstalledEngine,
    capability: tuple[int, int],
    kernels: Sequence[CompiledKernel],
    jobs: int,
    world: InstallWorld,
) -> list[BuiltKernel]:
    """Build missing kernels with `jobs` parallel compilers; return those that were built.

    Raises EngineError for kernels that could not be built, after building all others.
    """
    what = f"build the kernels of {engine.name}"
    site = site_packages(engine.path)
    if (site / _SHIM.stem).is_dir():
        world.say("flashinfer-jit-cache is installed, which contains its kernels precompiled")
        return []
    folder = folder_of(engine.path, capability)
    work = folder / _WORK
    cuda = _lay_out_compilers(engine, work, what, world)
    folder.mkdir(parents=True, exist_ok=True)
    safe_files.replace(site / _SHIM.name, _SHIM.read_text(encoding="utf-8"), 0o644)
    job = {"folder": str(folder), "modules": [asdict(kernel) for kernel in kernels]}
    own = trust.own_environ(world.environ)
    env = {
        **dict.fromkeys(own.keys() - _INHERITED_VARIABLES, ""),
        "CUDA_HOME": str(cuda),
        "FLASHINFER_CUDA_ARCH_LIST": "{}.{}".format(*capability),
        "FLASHINFER_WORKSPACE_BASE": str(work),
        "MAX_JOBS": str(jobs),
        "PATH": f"{engine.path / 'bin'}:{cuda / 'bin'}:{own.get('PATH', os.defpath)}",
    }
    finished = world.run(
        [*_nice(world), str(engine.interpreter), "-I", str(_SCRIPT), json.dumps(job)],
        env,
        lambda: _progress(folder, kernels, world.progress),
    )
    built = _read_reports(finished, what)
    shutil.rmtree(work, ignore_errors=True)
    _progress(folder, kernels, world.progress)
    return built


def _lay_out_compilers(engine: InstalledEngine, work: Path, what: str, world: InstallWorld) -> Path:
    """Lay out the CUDA toolkit; raises EngineError if a compiler is missing or others still run."""
    if pids := [str(pid) for pid in _find_builders(work)]:
        fact = f"compilers of a killed command are still running in {work} (pid {', '.join(pids)})"
        raise EngineError(what, fact, f"wait until they exit, or: kill {' '.join(pids)}")
    cuda = toolkit.lay_out(engine.path)
    if cuda is None:
        fact = "it has no compiler: its lock does not contain one"
        raise EngineError(what, fact, f"sudo caovanctl engine install {engine.version}")
    for name, package in (("c++", "g++"), ("cc", "gcc")):
        if trust.program(name, world.environ) is None:
            fact = f"{name}, which nvcc and Triton run, is not installed"
            raise EngineError(what, fact, f"sudo apt install {package}")
    return cuda


def _read_reports(finished: Finished, what: str) -> list[BuiltKernel]:
    """Read what was built; raises EngineError if a kernel could not be."""
    lines = [line for line in finished.output.splitlines() if line.startswith('{"module"')]
    reports = [json.loads(line) for line in lines]
    failed = [
        f"{report['module']}: {_cause_line(report['error'])}"
        for report in reports
        if "error" in report
    ]
    if failed or finished.code:
        facts = "; ".join(failed) or _cause_line(finished.output)
        raise EngineError(what, facts, "retry with: sudo caovanctl engine build-kernels")
    return [BuiltKernel(report["module"], report["seconds"], report["bytes"]) for report in reports]


def folder_of(engine: Path, capability: tuple[int, int]) -> Path:
    """The folder of an engine's kernels for cards of one kind."""
    return engine / FOLDER / "sm{}{}".format(*capability)


def _find_builders(work: Path) -> list[int]:
    """Processes whose working directory is in the folder: ninja outlives a killed build."""
    return find_processes(lambda process: (process / "cwd").readlink().is_relative_to(work))


def _nice(world: InstallWorld) -> list[str]:
    # Compilers keep every core busy for minutes: engines that serve meanwhile have priority.
    nice = trust.program("nice", world.environ)
    return [nice, "-n", "10"] if nice else []


def _progress(
    folder: Path, kernels: Sequence[CompiledKernel], report: Callable[[int, int, str], None]
) -> None:
    done = _labels(folder)
    left = [kernel.label for kernel in kernels if kernel.label not in done]
    parts = sum(1 for _ in (folder / _WORK).rglob("*.o"))
    label = f"building {left[0]}, {parts} parts compiled" if left else "kernels are built"
    report(len(kernels) - len(left), len(kernels), label)


def _labels(folder: Path) -> frozenset[str]:
    try:
        return frozenset(json.loads((folder / "built.json").read_text(encoding="utf-8"))["modules"])
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()


def _cause_line(output: str) -> str:
    """Find the line that names the cause: a compiler's last error, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    errors = [line for line in lines if "error" in line.lower() or "Killed" in line]
    return (errors or lines)[-1]
