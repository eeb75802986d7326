"""An installed CUDA engine with a working Python; torch, FlashInfer and the compiler are stand-ins.

A file `broken` in its folder makes the compiler fail at the widest attention with an fp8 cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

from caovand.adapters.engine_install import places

PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
NVCC = """#!/bin/sh
env > "$CUDA_HOME/../nvcc.env"
c++ --version > /dev/null || exit
case "$1" in *head_dim_qk_256*e4m3*) [ -e "$CUDA_HOME/../broken" ] && {
  echo "ptxas fatal error: a register is missing" >&2; echo "1 subcommand failed" >&2; exit 1; } ;;
esac
echo "code of $1 for $FLASHINFER_CUDA_ARCH_LIST" > "$1"
"""
FLASHINFER = {
    "torch/__init__.py": "float16, bfloat16, float8_e4m3fn, int32 = 'f16', 'bf16', 'e4m3', 'i32'\n"
    "class version:\n    cuda = '13.0'\n",
    "torch/version.py": "cuda = '13.0'\n",
    "torch-2.11.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n",
    "flashinfer/__init__.py": "",
    "flashinfer/compilation_context.py": """
import os
class CompilationContext:
    TARGET_CUDA_ARCHS = {tuple(os.environ["FLASHINFER_CUDA_ARCH_LIST"].split("."))}
""",
    "flashinfer/jit/__init__.py": """
import os, pathlib, subprocess
class Spec:
    def __init__(self, name):
        self.name = name
        self.build_dir = pathlib.Path(os.environ["FLASHINFER_WORKSPACE_BASE"], name)
        self.jit_library_path = self.build_dir / f"{name}.so"
def build_jit_specs(specs, skip_prebuilt):
    print("libraries talk")
    for spec in specs:
        spec.build_dir.mkdir(parents=True, exist_ok=True)
        command = ["nvcc", str(spec.jit_library_path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError("Ninja build failed. Ninja output:\\n" + done.stderr)
""",
    "flashinfer/jit/sampling.py": """
from flashinfer.jit import Spec
def gen_sampling_module():
    return Spec("sampling")
""",
    "flashinfer/jit/attention.py": """
from flashinfer.jit import Spec
def gen_batch_prefill_module(*, dtype_kv, head_dim_qk, **rest):
    return Spec(f"prefill_head_dim_qk_{head_dim_qk}_{dtype_kv}")
""",
    "nvidia/cu13/bin/nvcc": NVCC,
    "nvidia/cu13/include/cuda.h": "",
    "nvidia/cu13/nvvm/bin/cicc": "",
    "nvidia/cu13/lib/libcudart.so.13": "",
    "nvidia/cu13/lib/libcudadevrt.a": "",
}


def write(site: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
        (site / name).chmod(0o755)


def flashinfer(site: Path, version: str) -> None:
    text = f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {version}\n"
    write(site, {"flashinfer_python-1.dist-info/METADATA": text})


def cuda_engine(root: Path) -> places.InstalledEngine:
    """Create the engine in a folder of engines."""
    path = root / "vllm-0.21.0-cuda"
    (path / "bin").mkdir(parents=True)
    base = Path(sys._base_executable or sys.executable)  # type: ignore[attr-defined]
    (path / "bin/python").symlink_to(base)
    (path / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    write(site_of(path), FLASHINFER)
    flashinfer(site_of(path), "0.6.8.post1")
    made = places.InstalledEngine(
        path.name, path, "0.21.0", "cuda", "3.12.1", "2.11.0", None, None, "0" * 64, ""
    )
    places.finish(made)
    return made


def site_of(path: Path) -> Path:
    return path / "lib" / PYTHON / "site-packages"
