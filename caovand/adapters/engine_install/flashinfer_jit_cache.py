"""Point FlashInfer to the kernels that `caovanctl engine build-kernels` built.

A copy of this file is in an engine's site-packages, under the name of the package in which NVIDIA
publishes compiled kernels: FlashInfer asks it for their location before it compiles any.
CAOVAN_FLASHINFER_KERNELS is the folder for the cards of this start; without it there are no
kernels. Releases before 0.7 ask for a folder, later ones for providers.

It must not import anything of caovan.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

_FOLDER = Path(os.environ.get("CAOVAN_FLASHINFER_KERNELS") or "/nonexistent")


def __getattr__(name: str) -> str:
    """`__version__`, which FlashInfer compares with its own."""
    if name != "__version__":
        raise AttributeError(name)
    return version("flashinfer-python")


def get_jit_cache_dir() -> str:
    return str(_FOLDER)


def get_jit_cache_providers() -> list[SimpleNamespace]:
    try:
        built = json.loads((_FOLDER / "built.json").read_text(encoding="utf-8"))
        provider = SimpleNamespace(
            provider_id="caovan",
            distribution="caovan",
            version=version("flashinfer-python"),
            jit_cache_dir=str(_FOLDER),
            cuda_architectures=built["architectures"],
            modules=list(built["modules"].values()),
        )
    except (OSError, ValueError, KeyError):
        return []
    return [provider]
