"""The card and its driver, kernels that it cannot run or that cannot be built, compiling."""

from __future__ import annotations

from caovand.engines.common.logs.rows import host, kernel, runtime, toolchain, toolkit
from caovand.engines.common.logs.signature import Signature, signature
from caovand.engines.vllm.log.rows.by_phase import DISK_BY_PHASE, OPENING, READING

ROWS: tuple[Signature, ...] = (
    # The host denies something
    *host.ROWS,
    # The device
    *kernel.CARD_LOST,
    # A warning of the compiled parts, after which vLLM does not run on a card
    signature("gpu.unlinked", "consequence", "gpu-absent",
         r"^Failed to import from vllm\._\w{1,20} with ImportError\(['\"]"
         r"(?:/\S{1,200}/)?libcuda\.so"),
    signature("gpu.absent", "cause", "gpu-absent",
         runtime.ABSENT + r"|(?P<platform>Failed to infer device type)"),
    # What a method of vLLM's base class raises, where no platform was detected
    signature("gpu.base", "cause", "gpu-absent",
         r"^NotImplementedError at (?P<base>platforms/interface\.py):"),
    signature("cuda.unknown", "cause", "launch-failure",
         r"CUDA error: unknown error", OPENING),
    signature("dtype.compile", "cause", "backend-unsupported",
         r"Device (?P<card>.{1,60}) does not support bfloat16 compilation"),
    signature("gpu.rank", "cause", "gpu-absent",
         r"DP adjusted local rank (?P<rank>\d{1,4}) is out of bounds"),
    signature("gpu.count", "cause", "gpu-absent",
         r"World size \((?P<wanted>\d+)\) is larger than the number of available GPUs"
         r"(?: \((?P<found>\d+)\))?"),
    signature("cuda.arch", "cause", "backend-unsupported",
         runtime.NO_KERNEL +
         r"|is for sm\d+-sm\d+, but was built for sm\d+|No compiled (?P<kernel>\w{1,60}) "),
    signature("cuda.illegal", "cause", "illegal-access",
         r"(?P<reduce>custom_all_reduce)\.cuh:\d{1,5} '?an illegal memory access"
         r"|an illegal memory access was encountered|cudaErrorIllegalAddress"
         r"|CUDA_ERROR_ILLEGAL_ADDRESS"),
    signature("cuda.launch", "cause", "launch-failure",
         r"(?P<fault>unspecified launch failure|cudaErrorLaunchFailure"
         r"|CUDA error: misaligned address|CUDA error: an illegal instruction was encountered)"
         r"|(?P<asserted>device-side assert triggered)"
         r"|" + runtime.STREAM),
    # A fault surfaces in the next library that launches a kernel, which cannot explain it
    signature("cublas.failed", "generic", "launch-failure",
         r"(?:CUBLAS|CUDNN)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED"
         r"|INVALID_VALUE|MAPPING_ERROR)"),
    *kernel.OF_PROGRAM,
    # The CPU build's Gated DeltaNet. The first counts only where that code raises it (cause.py)
    signature("drafts.uneven", "generic", "engine-died",
         r"^RuntimeError: The size of tensor a \((?P<wanted>\d+)\) must match the size of tensor b "
         r"\((?P<found>\d+)\)"),
    signature("prompt.short", "cause", "engine-died",
         r"causal_conv1d_fwd_cpu: expect x to be transposed"),
    # The plugin
    signature("plugin.load", "cause", "plugin-error",
         r"Failed to load plugin (?P<plugin>caovan\S*)"),
    # Kernels that the card cannot run, or that cannot be built
    signature("smem.triton", "cause", "shared-memory-limit",
         r"out of resource: shared memory, Required: (?P<required>\d+), "
         r"Hardware limit: (?P<limit>\d+)|uses too much shared data"),
    signature("smem.tvm", "cause", "shared-memory-limit",
         r"Failed to set the allowed dynamic shared memory size to (?P<required>\d+)"),
    *toolchain.ROWS,
    *toolkit.ROWS,
    signature("jit.nvcc", "generic", "jit-toolchain",
         toolchain.BUILD + r"|(?P<unlinked>libcuda\.so) cannot found"),
    signature("jit.refused", "cause", "backend-unsupported",
         r"^ptxas \S{1,200}, line \d{1,9}; error {1,9}: (?P<why>.{1,200})"),
    signature("jit.ptxas", "generic", "jit-toolchain",
         toolchain.PTXAS),
    signature("jit.cc", "cause", "jit-toolchain",
         toolchain.COMPILER),
    signature("backend.only", "cause", "backend-unsupported",
         r"^\w{1,40}Error: (?:.{0,60}\b)?(?P<feature>[A-Za-z][\w-]{2,40}) (?:is|are) only "
         r"supported (?:in|by|with) "
         r"(?P<backend>(?:Flash|Triton|XFormers|TRTLLM|CUTLASS)\w{0,30}(?: \d)?)"),
    signature("backend.attention", "cause", "backend-unsupported",
         r"\w{0,20}Attention\w{0,10} (?:backend )?(?:does not|doesn't) (?:yet )?support"
         r"|No valid attention backend found for|Selected backend \S+ is not valid for this config"
         r"|is not valid for this configuration|FP8 KV cache is not supported by"
         r"|Invalid attention backend for|FlashAttention only supports Ampere"
         r"|FlashAttention does not support \S{1,40} kv-cache"
         r"|For FP8 input, output must have dtype BF16"
         r"|backend currently does not support|^NotImplementedError: No \w{1,30} MoE backend "
         r"supports"
         r"|^CUDA error \(\S{1,200}/flash_\w{1,60}\.h:\d{1,6}\): invalid argument"
         r"|'_OpNamespace' '_vllm_fa\d_C' object has no attribute"),
    signature("backend.dtype", "cause", "backend-unsupported",
         r"Bfloat16 is only supported on GPUs with compute capability of at least "
         r"(?P<needs>\d{1,2}(?:\.\d)?)"),
    signature("gpu.old", "cause", "backend-unsupported",
         r"GPUs with compute capability below (?P<oldest>[\d.]{1,5}) are not supported"),
    signature("backend.capability", "cause", "backend-unsupported",
         r"quantization method (?P<method>\S{1,100}) is not supported for the current GPU"
         r"|[Qq]uantization scheme is not supported for .{0,8}the current GPU\. Min capability: "
         r"(?P<needs>\d{2,3})\..{0,8}Current capability: (?P<has>\d{2,3})"),
    signature("backend.quantization", "cause", "backend-unsupported",
         r"torch\.(?P<dtype>\w{1,40}) is not supported for quantization method (?P<scheme>\w+)"
         r"|(?P<other>\b\w{1,40}) quantization is currently not supported in"
         r"|(?P<cache>kv_(?:cache_d|data_)type).{0,200}is not supported"
         r"|Failed to find a kernel that can implement the (?P<kernel>\w+)"
         r"|W8A8(?:-INT8)? is not supported by (?P<input>marlin) kernel"),
    signature("uva.absent", "cause", "backend-unsupported", r"\bUVA is not available"),
    # Compiling
    signature("cache.stale", "cause", "compile-cache-stale",
         r"vLLM failed to compile the model\. The most likely reason"
         r"|AssertionError: expected size (?P<expected>\d+)==(?P<found>\d+)"
         r"|Expected tensors only, but got"
         r"|torch_(?:aot_)?compile.{0,400}\b(?:corrupt|truncated|UnpicklingError)"),
    signature("disk.full", "cause", "unknown",
         r"No space left on device(?:: '(?P<path>[^']{1,200})')?", DISK_BY_PHASE),
    signature("disk.error", "cause", "unknown",
         r"^OSError: \[Errno (?:5|116)\]|\(os error (?:5|116)\)", READING),
    signature("compile.recursion", "cause", "compile-failed",
         r"^RecursionError: maximum recursion depth"),
)  # fmt: skip
