"""What the runtimes of CUDA and HIP report through PyTorch: rows for engines made of it."""

from __future__ import annotations

from caovand.engines.common.signature import signature

NO_KERNEL = (
    r"no kernel image is available for execution on the device"
    r"|(?:CUDA|HIP) error: invalid device function|CUDA kernel \w{1,200} has no device code"
    r"|device kernel image is invalid|(?:CUDA|HIP|Triton) [Ee]rror.{0,40}: named symbol not found"
    r"|CUDA_ERROR_(?:NO_BINARY_FOR_GPU|INVALID_IMAGE)|cudaError(?:NoKernelImage|InvalidKernelImage)"
    r"|Unknown GPU architecture: gfx"
)
STREAM = (
    r"(?:CUDA|HIP) error: operation (?:not permitted when stream is capturing"
    r"|failed due to a previous error during capture)|cudaErrorStreamCapture\w+"
)
ROWS = (
    signature("gpu.busy", "cause", "gpu-absent",
         r"CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable"),
    signature("gpu.peer", "cause", "collective-timeout",
         r"peer access is not supported between these two devices"
         r"|peer mapping resources exhausted|CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
         r"|cudaErrorPeerAccessUnsupported"),
)  # fmt: skip
"""Codes that mean the same for every one of these engines."""
