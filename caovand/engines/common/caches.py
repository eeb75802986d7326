"""Cache folders in ~/.cache that PyTorch and related libraries create."""

from __future__ import annotations

OF_PYTORCH = (
    "cutile-python", "huggingface", "modelscope", "numba", "torch", "torch_extensions",
)  # fmt: skip
