"""Cache folders that PyTorch, and libraries that engines use with it, create in ~/.cache."""

from __future__ import annotations

PYTORCH_CACHES = (
    "cutile-python", "huggingface", "modelscope", "numba", "torch", "torch_extensions",
)  # fmt: skip
