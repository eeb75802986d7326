"""What ggml and CUDA print when a card fails: patterns and rows for the tables of engines."""

from __future__ import annotations

from caovand.engines.common.signature import signature

NO_MEMORY = (
    r"allocating (?P<mib>[\d.]+) MiB on device (?P<device>\d+): cudaMalloc failed: out of mem"
    r"|(?:CUDA|ROCm) error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|ggml_vulkan: Device memory allocation of size (?P<bytes>\d{1,18}) failed"
    r"|hipMalloc failed: out of memory|ErrorOutOfDeviceMemory"
)
BUFFER = r"(?P<buffer>(?:CUDA|ROCm|Vulkan|SYCL|MUSA)\w{0,20}) buffer"
"""A card's buffer, as ggml names it."""
ABSENT = (
    r"failed to initialize CUDA: (?P<why>[^\n]{1,200})|no CUDA-capable device is detected"
    r"|CUDA driver version is insufficient|invalid device: (?P<name>CUDA\d{1,3})"
    r"|lib(?:cuda|nvidia-ml)\.so[.\d]{0,8}: cannot open shared object"
)
NO_KERNEL = (
    r"no kernel image is available for execution on the device|no device code compatible with "
    r"CUDA arch|(?:CUDA|ROCm) error: invalid device function"
    r"|CUDA kernel \w{1,200} has no device code"
    r"|device kernel image is invalid|(?:CUDA|HIP|Triton) [Ee]rror.{0,40}: named symbol not found"
    r"|CUDA_ERROR_(?:NO_BINARY_FOR_GPU|INVALID_IMAGE)|cudaError(?:NoKernelImage|InvalidKernelImage)"
)
ILLEGAL = r"an illegal memory access was encountered"
LAUNCH = (
    r"unspecified launch failure|misaligned address|device-side assert triggered"
    r"|UR_RESULT_ERROR_DEVICE_LOST|ggml_vulkan: device lost on"
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
"""Codes of the CUDA runtime that mean the same for every engine made of PyTorch."""
