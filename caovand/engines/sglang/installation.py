"""The proof of an environment with SGLang."""

from __future__ import annotations

from caovand.core.engine.install import Imports, Install

# They are linked against the driver's own library: without a driver none of them loads.
_KERNELS = """
for name in ("sgl_kernel", "sgl_kernel.flash_attn", "flashinfer"):
    attempt(name)
"""
INSTALL = Install(
    versions={"cuda": "0.5.17"},
    imports=Imports(modules=("sglang", "sglang.srt.server_args"), kernels=_KERNELS),
)
