"""Building kernels beforehand: the toolkit inside an engine, and what is built where.

The compiler is a script. The engine's Python is a real one, with packages that stand in for torch
and FlashInfer.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.engine_install import commands, kernels, places, toolkit
from caovand.adapters.engine_install.environment import clone
from caovand.adapters.engine_install.errors import EngineError
from caovand.engines.vllm.kernels import FOLDER, PLACE
from caovand.engines.vllm.kernels import kernels as needed
from caovand.engines.vllm.probe import VERSIONS
from tests.fake_flashinfer import cuda_engine, flashinfer, site_of, write

TURING = (7, 5)
SM75 = needed((0, 21, 0), TURING)


@pytest.fixture
def engine(tmp_path: Path) -> places.InstalledEngine:
    return cuda_engine(tmp_path / "engines")


def world(said: list[str] | None = None, seen: list[Any] | None = None) -> commands.InstallWorld:
    return commands.InstallWorld(
        run=commands.run,
        free_bytes=lambda path: 2**40,
        now=lambda: datetime.now(timezone.utc),
        environ=os.environ,
        say=(said if said is not None else []).append,
        progress=lambda *step: seen.append(step) if seen is not None else None,
    )


def built(engine: places.InstalledEngine, jobs: int = 2) -> list[str]:
    return [one.label for one in kernels.build(engine, TURING, SM75, jobs, world())]


ALL = [kernel.label for kernel in SM75]


def test_the_toolkit_has_all_that_compilers_look_for(engine: places.InstalledEngine) -> None:
    home = toolkit.lay_out(engine.path, drivers=())
    assert home == engine.path / "cuda"
    for name in ("bin/nvcc", "include/cuda.h", "nvvm/bin/cicc", "lib/libcudart.so.13"):
        assert (home / name).is_file()
    for name in ("libcudart.so", "libcudart.so.13", "libcudadevrt.a"):
        assert (home / "lib64" / name).is_file()
    assert (home / "lib64/stubs/libcuda.so").read_text() == "/* no driver is installed */\n"


def test_the_linker_is_led_to_the_driver_that_is_installed(
    engine: places.InstalledEngine, tmp_path: Path
) -> None:
    (tmp_path / "libcuda.so.1").write_text("")
    places_of = (tmp_path / "absent", tmp_path)
    for _again in range(2):
        home = toolkit.lay_out(engine.path, drivers=places_of)
        assert home is not None
        script = (home / "lib64/stubs/libcuda.so").read_text()
        assert script == f"INPUT({tmp_path}/libcuda.so.1)\n"


def test_a_toolkit_that_is_whole_is_left_to_who_works_in_it(engine: places.InstalledEngine) -> None:
    home = toolkit.lay_out(engine.path)
    assert home is not None

    def seen() -> dict[Path, tuple[int, int]]:
        parts = (home, *home.rglob("*"))
        return {part: (part.lstat().st_ino, part.lstat().st_mtime_ns) for part in parts}

    before = seen()
    assert built(engine) == ALL
    assert seen() == before
    (home / "include").unlink()
    (home / "nvvm").unlink()
    (home / "nvvm").symlink_to("/nonexistent")
    libraries = (home / "lib64").lstat().st_ino
    assert toolkit.lay_out(engine.path) == home
    assert (home / "include/cuda.h").is_file()
    assert (home / "nvvm/bin/cicc").is_file()
    assert (home.lstat().st_ino, (home / "lib64").lstat().st_ino) == (before[home][0], libraries)


def test_a_copy_of_an_engine_has_a_toolkit_of_its_own(engine: places.InstalledEngine) -> None:
    toolkit.lay_out(engine.path, drivers=())
    copy = engine.path.with_name("copy")
    copy.mkdir()
    clone(engine.path, copy)
    links = [path for path in (copy / "cuda").rglob("*") if path.is_symlink()]
    assert len(links) > 4
    for link in links:
        assert link.resolve().is_relative_to(copy)


def test_an_engine_without_a_compiler_has_no_toolkit(engine: places.InstalledEngine) -> None:
    (site_of(engine.path) / "nvidia/cu13/bin/nvcc").unlink()
    assert toolkit.lay_out(engine.path) is None
    with pytest.raises(EngineError, match=r"has no compiler: .*; sudo caovanctl engine install"):
        built(engine)


def test_all_is_built_where_flashinfer_looks_with_the_engines_own_compiler(
    engine: places.InstalledEngine,
) -> None:
    seen: list[Any] = []
    made = kernels.build(engine, TURING, SM75, 3, world(seen=seen))
    assert [one.label for one in made] == ALL
    folder = engine.path / PLACE / "sm75"
    record = json.loads((folder / "built.json").read_text())
    assert record["architectures"] == ["sm75"]
    assert list(record["modules"]) == ALL
    for name in record["modules"].values():
        assert (folder / name / f"{name}.so").read_text().endswith(f"{name}.so for 7.5\n")
    assert made[0].size_bytes == (folder / "sampling/sampling.so").stat().st_size
    assert not (folder / ".building").exists()
    assert seen[-1] == (5, 5, "kernels are built")
    ran = nvcc_saw(engine)
    assert ran["CUDA_HOME"] == str(engine.path / "cuda")
    assert ran["MAX_JOBS"] == "3"
    own = [str(engine.path / "bin"), str(engine.path / "cuda/bin")]
    assert ran["PATH"].split(os.pathsep)[:2] == own


def nvcc_saw(engine: places.InstalledEngine) -> dict[str, str]:
    """The environment that the compiler last ran in."""
    lines = (engine.path / "nvcc.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


LEADING = (
    "CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH",
    "GCC_EXEC_PREFIX", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CUDA_HOME",
    "CUDA_PATH", "CUDA_LIB_PATH", "FLASHINFER_NVCC", "FLASHINFER_EXTRA_CUDAFLAGS", "MAX_JOBS",
    "FLASHINFER_CUBIN_DIR", "FLASHINFER_CUDA_ARCH_LIST", "FLASHINFER_DISABLE_JIT", "PYTHONPATH",
    "FLASHINFER_WORKSPACE_BASE", "TORCH_CUDA_ARCH_LIST", "CAOVAN_FLASHINFER_KERNELS", "TMPDIR",
)  # fmt: skip


def test_no_variable_of_the_caller_leads_a_compiler(
    engine: places.InstalledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LEADING:
        monkeypatch.setenv(name, "/planted")
    kernels.build(engine, TURING, SM75[:1], 1, world())
    assert [name for name, value in nvcc_saw(engine).items() if value == "/planted"] == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, which runs no program of another user")
def test_root_has_no_compiler_of_another_users_folder_called(
    engine: places.InstalledEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, mark = tmp_path / "theirs", tmp_path / "mark"
    theirs.mkdir()
    for name in ("c++", "cc", "ninja", "nice"):
        (theirs / name).write_text(f"#!/bin/sh\n: > {mark}\n")
        (theirs / name).chmod(0o755)
    os.chown(theirs, 65534, 65534)
    monkeypatch.setenv("PATH", f"{theirs}:{os.environ['PATH']}")
    assert built(engine) == ALL
    assert not mark.exists()
    assert str(theirs) not in nvcc_saw(engine)["PATH"].split(os.pathsep)


def test_progress_tells_how_far_a_module_is(engine: places.InstalledEngine) -> None:
    seen: list[Any] = []
    part = engine.path / PLACE / "sm75/.building/sampling/part.cuda.o"

    def run(command: Any, env: Any, tick: Callable[[], None]) -> commands.Finished:
        part.parent.mkdir(parents=True)
        part.write_text("")
        tick()
        return commands.Finished(0, "")

    kernels.build(engine, TURING, SM75, 1, replace(world(seen=seen), run=run))
    assert seen[0] == (0, 5, "building sampling, 1 parts compiled")


def test_what_is_built_is_not_built_again_and_what_is_lost_is(
    engine: places.InstalledEngine,
) -> None:
    assert built(engine) == ALL
    assert built(engine) == []
    (engine.path / PLACE / "sm75/sampling/sampling.so").unlink()
    assert built(engine) == ["sampling"]
    flashinfer(site_of(engine.path), "0.6.9")  # somebody ran pip there
    assert built(engine) == ALL


def test_one_that_cannot_be_built_is_named_and_the_rest_is_there(
    engine: places.InstalledEngine,
) -> None:
    (engine.path / "broken").write_text("")
    fact = (
        r"cannot build the kernels of vllm-0.21.0-cuda: attention-256-fp8: "
        r"ptxas fatal error: a register is missing; retry with: sudo caovanctl engine build-kernels"
    )
    with pytest.raises(EngineError, match=fact):
        built(engine)
    (engine.path / "broken").unlink()
    assert built(engine) == ["attention-256-fp8"]


def test_compilers_that_outlived_a_killed_call_are_waited_for(
    engine: places.InstalledEngine,
) -> None:
    work = engine.path / PLACE / "sm75/.building/sampling"
    work.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"], cwd=work) as left:
        try:
            with pytest.raises(EngineError, match=rf"pid {left.pid}\); wait .*: kill {left.pid}$"):
                built(engine)
            assert not (engine.path / "cuda").exists()
        finally:
            left.kill()
    assert built(engine) == ALL


@pytest.mark.parametrize(("lacks", "package"), [("c++", "g++"), ("cc", "gcc")])
def test_a_host_compiler_that_is_missing_is_named(
    engine: places.InstalledEngine, tmp_path: Path, lacks: str, package: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in {"c++", "cc"} - {lacks}:
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    poor = replace(world(), environ={"PATH": str(tools)})
    fact = (
        rf": {re.escape(lacks)}, which nvcc and Triton run, is not installed; "
        rf"sudo apt install {re.escape(package)}$"
    )
    with pytest.raises(EngineError, match=fact):
        kernels.build(engine, TURING, SM75, 1, poor)


def test_nvidias_own_kernels_are_enough(engine: places.InstalledEngine) -> None:
    package = site_of(engine.path) / "flashinfer_jit_cache"
    write(package, {"__init__.py": "theirs\n"})
    assert built(engine) == []
    assert not (site_of(engine.path) / "flashinfer_jit_cache.py").exists()
    assert not (engine.path / "cuda").exists()


def asked(engine: places.InstalledEngine, script: str, **env: str) -> Any:
    """What the engine's Python prints, as JSON."""
    done = subprocess.run(
        [engine.interpreter, "-I", "-c", script],
        env={"PATH": os.defpath, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_flashinfer_is_led_to_them_where_a_start_says_so(engine: places.InstalledEngine) -> None:
    built(engine)
    folder = str(engine.path / PLACE / "sm75")
    script = (
        "import flashinfer_jit_cache as c, json; print(json.dumps([c.__version__,"
        " c.get_jit_cache_dir(), [vars(p) for p in c.get_jit_cache_providers()]]))"
    )
    version, place, (provider,) = asked(engine, script, **{FOLDER: folder})
    assert (version, place) == ("0.6.8.post1", folder)
    assert provider["jit_cache_dir"] == folder
    assert provider["cuda_architectures"] == ["sm75"]
    assert "sampling" in provider["modules"]
    assert provider["version"] == version
    _, place, providers = asked(engine, script)
    assert not Path(place).exists()
    assert providers == []


def test_the_probe_tells_the_toolkit_and_what_is_built_for_these_releases(
    engine: places.InstalledEngine,
) -> None:
    built(engine)
    script = 'MARK = ""\n' + VERSIONS
    found = asked(engine, script, CUDA_HOME="/usr/local/cuda")
    assert found["cuda_home"] == str(engine.path / "cuda")
    assert found["nvcc"] == f"{engine.path}/cuda/bin/nvcc"
    assert found["kernels"] == {"sm75": sorted(ALL)}
    assert found["jit_cache"] is None
    flashinfer(site_of(engine.path), "0.6.9")
    assert asked(engine, script)["kernels"] == {}
