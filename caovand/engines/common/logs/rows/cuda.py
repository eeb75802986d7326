"""ggml's messages when a card fails, on CUDA, ROCm, Vulkan, SYCL or Metal: patterns for tables."""

from __future__ import annotations

from caovand.engines.common.logs.signature import signature

_OF = (
    r"(?:CUDA|ROCm|HIP|MUSA) error(?: \d{1,4} at \S{1,200})?: "
    r"(?:CUDA error: |\S{1,200}:\d{1,6}: )?"
)
"""The prefix of ggml's messages about errors of the runtime or of its BLAS, whose text follows."""
NO_MEMORY = (
    r"allocating (?P<mib>[\d.]+) MiB on device (?P<device>\d+): cudaMalloc failed: out of mem"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED"
    rf"|{_OF}(?:out of memory|the resource allocation failed)"
    r"|ggml_vulkan: Device memory allocation of size (?P<bytes>\d{1,18}) failed"
    r"|hipMalloc failed: out of memory|ErrorOutOfDeviceMemory|ErrorOutOfPoolMemory"
    r"|ggml_metal_\w{1,60}: (?:error: )?failed to allocate buffer, size = +(?P<metal_mib>[\d.]+)"
    r"|(?:PI|UR_RESULT)_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)"
    r"|[Cc]an't allocate (?P<sycl_bytes>\d{1,18}) [Bb]ytes of memory on device"
    r"|HSA_STATUS_ERROR_OUT_OF_RESOURCES|EL0004: \[PID"
)
NO_MEMORY_OF_METAL = (
    r"kIO\w{2,6}CommandBufferCallbackErrorOutOfMemory|^error: Insufficient Memory"
    r"|ggml_metal_\w{1,40}: .{0,60}(?:is larger than buffer maximum|buffer is nil)"
    r"|failed assertion .Buffer Validation"
)
"""The error that explains the failed command buffer in the line before."""
BUFFER = (
    r"\(?(?P<buffer>(?:CUDA|ROCm|Vulkan|SYCL|MUSA|CANN|OpenCL|HIP|MTL"
    r"|Metal)(?!\w{0,3}_Host)\w{0,20})"
    r"\)? buffer"
)
"""A card's buffer, as ggml names it; those with `_Host` are in the machine's memory."""
ABSENT = (
    r"failed to initialize (?:CUDA|ROCm|MUSA): (?P<why>[^\n]{1,200})"
    r"|no (?:CUDA|ROCm)-capable device is detected"
    rf"|invalid device: (?P<name>(?:CUDA|ROCm|Vulkan|SYCL)\d{{1,3}})|{_OF}(?:initialization error"
    r"|system not yet initialized|invalid device ordinal|forward compatibility was attempted on"
    r"|system has unsupported display driver)"
    r"|lib(?:cuda|nvidia-ml)\.so[.\d]{0,8}: cannot open shared object"
    r"|Could not initialize Tensile host: No devices found|ROCk module is NOT loaded"
    r"|(?:PI|UR_RESULT)_ERROR_DEVICE_NOT_FOUND|No device of requested type available"
    r"|main_gpu_id ?< ?g_all_sycl_device_count"
    r"|ggml_vulkan: No (?:suitable )?devices found|vk::createInstance: ErrorIncompatibleDriver"
    r"|ErrorInitializationFailed|system has unsupported display driver"
)
NO_KERNEL = (
    r"(?:(?:CUDA|HIP) kernel \w{1,200} )?(?P<missing>no kernel image is available for execution on "
    r"the device|has no device code|no device code compatible with (?:CUDA|HIP) arch)"
    rf"|{_OF}(?:invalid device function|(?P<image>device kernel image is invalid)"
    r"|the requested functionality is not supported)"
    r"|CUBLAS_STATUS_(?:NOT_SUPPORTED|ARCH_MISM)"
    r"|[Nn]o compatible code objects? found|hipErrorInvalidImage"
    r"|rocBLAS error: Cannot read .{1,200}|hipErrorNoBinaryForGpu"
    r"|(?:CUDA|HIP|ROCm) error: named symbol not found|was compiled without support for the current"
    r"|Unable to find code object for all current devices|No kernel named \w{1,300} was found"
    r"|(?:PI|UR_RESULT)_ERROR_(?:INVALID_BINARY|INVALID_KERNEL_NAME|BUILD_PROGRAM_FAILURE"
    r"|PROGRAM_BUILD_FAILURE)|ErrorFeatureNotPresent|ErrorExtensionNotPresent"
    r"|Failed to create pipeline|Device \d{1,3} does not support 16-bit storage"
)
ILLEGAL = (
    r"an illegal memory access was encountered|Memory access fault by GPU node"
    r"|operation not supported on global/shared address space"
)
LAUNCH = (
    r"(?P<fault>unspecified launch failure|misaligned address"
    r"|UR_RESULT_ERROR_DEVICE_LOST|PI_ERROR_DEVICE_LOST|DEVICE_LOST\b|ErrorDeviceLost"
    r"|DeviceLostError|ggml_vulkan: device lost on|HW Exception by GPU node"
    r"|kIO\w{2,6}CommandBufferCallbackError\w{1,60}|HSA_STATUS_ERROR_(?:EXCEPTION|HARDWARE)\w{0,60}"
    r"|the launch timed out and was terminated|an illegal instruction was encountered)"
    r"|(?P<asserted>device-side assert triggered)"
)
OTHER = (
    r"(?:^|: )(?:CUDA|ROCm|MUSA|SYCL|HIP) error(?:: |$|\")|^CUDA error|cublas.{0,60} failed"
    r"|current device: -?\d{1,3}, in function|GGML_ASSERT\((?:stat|err|status) == (?:cuda|hip)Succ"
    r"|^Native API (?:failed|returns)|backend failed with error: .{0,10}\bUR_RESULT_ERROR_"
    r"|CHECK_TRY_ERROR\("
)
METAL = (
    r"Error Domain=MTLLibraryErrorDomain|ggml_metal_init\(\) failed"
    r"|failed to initialize the Metal library"
    r"|MetalPerformancePrimitives\.framework/.{1,200} error: |_get_default_buffer_type\(0x0[,)]"
)
"""Kernels that this Mac cannot compile, or no card that Metal can use."""
STATES = (
    signature("ggml.busy", "cause", "gpu-absent",
         r"CUDA-capable devices? (?:\(s\) )?(?:is/)?are busy or unavailable"),
    signature("ggml.vulkan.none", "cause", "gpu-absent",
         r"ggml_vulkan: No (?:suitable )?devices found"
         r"|vk::createInstance: ErrorIncompatibleDriver"),
)  # fmt: skip
"""Why a card cannot be used: rows for both tables."""
