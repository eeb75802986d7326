"""Texts that SGLang and its libraries print when they fail: one row per text.

`tests/samples/sglang` has lines for each row: from 0.5.17 on an H100, published, or by the sources
of 0.5.23.

Order matters within a line: the first matching row wins. Between lines, `cause.py` decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.failure import Failure
from caovand.engines.common.logs.rows import cuda, host, kernel, python, runtime, toolchain
from caovand.engines.common.logs.signature import SERVED, Signature, signature

_ROOM: Mapping[str, Failure] = {
    "kv": "kv-cache-none", "capture": "device-oom-capture", "http": "device-oom-run",
    "serving": "device-oom-run",
}  # fmt: skip

_CODE = (
    r"(?:Subprocess (?P<process>\w{1,60}) \(pid=\d{1,9}\) crashed with exit code "
    r"|scheduler died during initialization \(exit code: |^Exit code: )"
)
"""What comes before a process's exit code."""
SIGNATURES: tuple[Signature, ...] = (
    *host.ROWS,
    *python.ROWS,
    *toolchain.ROWS,
    # Memory
    signature("sglang.cache", "cause", "kv-cache-none",
         r"Not enough memory\. Please try to increase --mem-fraction-static"
         r"|Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static"
         r"(?:=(?P<share>0\.\d{1,4}))?"
         r"|Not enough GPU memory for hybrid \(mamba"
         r"|Hybrid \(mamba[\w/-]{1,40}\) state cache is too small"
         r"|larger than the profiled value -\d"),
    signature("sglang.graphs.oom", "cause", "device-oom-capture",
         r"Capture cuda graph failed: (?:CUDA out of memory|CUDA error: out of memory)"),
    signature("sglang.oom", "cause", "device-oom-load",
         r"CUDA out of memory\. Tried to allocate (?P<wanted>[\d.]{1,12} [KMG]iB)"
         r"(?:\. GPU (?P<gpu>\d{1,3}) has a total capacity of (?P<total>[\d.]{1,12} GiB))?", _ROOM),
    signature("sglang.oom.plain", "generic", "device-oom-load",
         r"(?:CUDA|HIP) error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
         r"|torch\.(?:cuda\.)?OutOfMemoryError|HIP out of memory|CUBLAS_STATUS_ALLOC_FAILED"
         r"|NVML_SUCCESS == r INTERNAL ASSERT|Triton Error \[CUDA\]: out of memory", _ROOM),
    signature("sglang.pool", "cause", "kv-cache-short",
         r"(?:Prefill|Decode) out of memory\. Try to lower your batch size"
         r"|No space left for only one request"),
    signature("sglang.slots", "cause", "kv-cache-short", r"alloc_req_slots runs out of memory"),
    signature("sglang.ram", "cause", "host-oom",
         r"\[Errno 12\] Cannot allocate memory|^MemoryError\b"
         r"|DefaultCPUAllocator: can't allocate memory|std::bad_alloc"),
    signature("sglang.unbalanced", "cause", "vram-busy",
         r"^ValueError: The memory capacity is unbalanced"),
    # The card
    *kernel.CARD_LOST,
    signature("sglang.absent", "cause", "gpu-absent",
         runtime.ABSENT),
    signature("sglang.old", "cause", "backend-unsupported",
         r"SGLang only supports sm75 and above"),
    signature("sglang.arch", "cause", "backend-unsupported", runtime.NO_KERNEL),
    signature("sglang.dtype", "cause", "backend-unsupported",
         r"FlashAttention only supports Ampere GPUs or newer"
         r"|Capture cuda graph failed: .{0,200}\b(?:[Uu]nsupported|not supported|only support)"),
    signature("sglang.attention", "cause", "backend-unsupported",
         r"\b(?:fa[34]|flashinfer|triton|trtllm_mha|aiter|ascend|flashmla|torch_native)\b.{0,150}"
         r"(?:backends? (?:is|are) (?:only )?supported|(?:is|are) required for .{1,80} but got)"),
    signature("sglang.modelopt", "cause", "bad-arguments",
         r"ModelOptFp8Config only supports static FP8"),
    signature("sglang.warmup", "cause", "bad-arguments",
         r"^AssertionError: res=<Response \[(?P<status>\d{3})\]>"),
    signature("sglang.quantization", "cause", "backend-unsupported",
         r"Quantization scheme requiring compute capability"),
    signature("sglang.cc", "cause", "jit-toolchain", toolchain.COMPILER),
    signature("sglang.jit", "cause", "jit-toolchain", toolchain.BUILD + r"|" + toolchain.PTXAS),
    signature("sglang.smem", "cause", "shared-memory-limit",
         r"out of resource: shared memory, Required: (?P<wanted>\d{1,9})"),
    signature("sglang.leak", "generic", "engine-died",
         r"^ValueError: (?P<pool>\w{0,40}(?: ?pool)?) memory leak detected!"),
    signature("sglang.illegal", "cause", "illegal-access", cuda.ILLEGAL),
    signature("sglang.launch", "cause", "launch-failure", cuda.LAUNCH + r"|" + runtime.STREAM),
    signature("sglang.nccl", "generic", "collective-timeout",
         r"ProcessGroupNCCL's watchdog got stuck|Watchdog caught collective operation timeout"
         r"|NCCL [Ee]rror"),
    signature("sglang.graphs", "generic", "launch-failure",
         r"Capture cuda graph failed:(?: (?P<why>\S.{0,300}))?"),
    *kernel.OF_PROGRAM,
    # The model and the options
    signature("sglang.model.architecture", "cause", "bad-arguments",
         r"Model architectures \[(?P<architecture>[^\]]{1,200})\] are not supported for now"),
    signature("sglang.context", "cause", "bad-arguments",
         r"context_length \((?P<wanted>\d{1,12})\) is greater than the derived context_length "
         r"\((?P<limit>\d{1,12})\)"),
    signature("sglang.args.unknown", "cause", "bad-arguments",
         r"(?:launch_server\.py|sglang(?: serve)?): error: unrecognized arguments: "
         r"(?:(?P<underscored>--[a-z\d-]{1,40}_[\w-]{1,60})|(?P<options>.{1,300}))"),
    signature("sglang.args", "cause", "bad-arguments",
         r"(?:launch_server\.py|sglang(?: serve)?): error: "
         r"(?:" + python.CHOICE + r"|(?P<why>.{1,300}))"),
    signature("sglang.model.missing", "cause", "model-missing",
         r"Can't load the configuration of '(?P<path>[^']{1,400})'"
         r"|(?P<unrecognized>Unrecognized model in (?P<model>\S{1,400})\. Should have)"
         r"|Cannot find any model weights with `(?P<folder>[^`]{1,400})`"
         r"|" + python.NO_MODEL),
    signature("args.split", "cause", "bad-arguments", python.UNEVEN),
    signature("sglang.model.broken", "cause", "model-missing",
         r"(?P<cut>SafetensorError: Error while deserializing header"
         r"|safetensors_rust\.SafetensorError)"
         r"|" + python.NO_TENSOR),
    *python.HUB,
    # The machine
    signature("disk.full", "cause", "unknown", r"\[Errno 28\] No space left on device"),
    signature("sglang.access", "cause", "access-denied",
         r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^']{1,400})'"),
    signature("sglang.port", "cause", "port-busy",
         r"error while attempting to bind on address \('(?P<host>[^']{1,100})', (?P<port>\d{1,5})"
         r"|The server socket has failed to (?:listen|bind)(?:.{0,80} port: (?P<joined>\d{1,5}))?"
         r"|(?P<any>\[Errno 98\] (?!error while att)|ZMQError: Address already in use)"
         r"|(?P<what>(?:\w{1,20}_)?port) at (?P<taken>\d{1,5}) is not available in \d{1,6} seconds"
         r"(?:.{0,80}process\.name\(\)='(?P<program>[^']{1,60})')?"),
    signature("sglang.transfer", "consequence", "collective-timeout",
         r"(?:Decode|Prefill) transfer failed for request|KVTransferError\("
         r"|Failed to send kv chunk"),
    # Ends
    signature("sglang.watchdog", "cause", "hang",
         r"[Ww]atchdog timeout \(self\.watchdog_timeout=(?P<seconds>[\d.]{1,9})"),
    signature("sglang.killed", "consequence", "host-oom", _CODE + r"(?P<silent>-9)(?!\d)",
         SERVED),
    signature("sglang.crashed", "consequence", "engine-died",
         _CODE + r"(?P<code>(?P<silent>-15|0)(?!\d)|-?\d{1,4})"
         r"|^Fatal Python error: (?P<error>[\w ]{1,60})"),
    signature("sglang.cuda", "generic", "launch-failure",
         r"^(?:torch\.AcceleratorError|RuntimeError): "
         r"(?:(?:CUDA|HIP) error|Triton Error \[CUDA\]): (?P<error>.{1,300})"),
    signature("sglang.compile", "generic", "compile-failed",
         r"^torch\._(?:inductor|dynamo)\.exc\.\w+|BackendCompilerFailed"
         r"|^triton\.compiler\.errors\.\w+"),
    *python.ANY_PROGRAM,
    signature("sglang.exception", "generic", "unknown",
         r"^(?:\w{1,60}\.){0,6}\w{0,60}(?:Error|Exception)(?:: |\(|$| at \S)", SERVED),
    signature("sglang.sigquit", "wrapper", "engine-died",
         r"Scheduler hit an exception|scheduler is dead"
         r"|(?:Received sigquit from a child|SIGQUIT received\.)"
         r"|Initialization failed\."),
)  # fmt: skip
REFUSED = signature("sglang.refused", "generic", "bad-arguments", python.REFUSES.pattern,
    SERVED)  # fmt: skip
"""An exception without its own row, in code that reads options and the model's configuration."""
MISFIT = signature("sglang.model.misfit", "generic", "model-missing",
    r"(?:Key|Assertion|Value|Index)Error\b|RuntimeError: The size of tensor a",
    SERVED)  # fmt: skip
"""An exception without its own row, in code that reads weights."""
NO_FIGURE = signature("sglang.figure", "cause", "bad-arguments", r"'NoneType'")
"""A comparison with the card's memory, which SGLang could not read."""
UNSERVED = signature("sglang.unserved", "consequence", "engine-died", r"Connection refused")
"""The server's own first request, which found no server: it had exited before."""
NO_SIZES = signature("sglang.drafts.sizes", "cause", "bad-arguments", r"'NoneType'")
"""A comparison with how much to draft, which nobody set."""
BY_ID: Mapping[str, Signature] = {row.id: row for row in SIGNATURES}
UNBALANCED = signature("sglang.unbalanced.drafts", "cause", "bad-arguments",
    BY_ID["sglang.unbalanced"].pattern.pattern)  # fmt: skip
"""The same when drafts are set up, after the model: its own memory is what the check finds."""
HARMLESS: tuple[Signature, ...] = (
    signature("sglang.import", "benign", "unknown", r"Ignore import error when loading sglang\."),
    signature("sglang.moe-config", "benign", "unknown", r"Performance might be sub-optimal!"),
    signature("sglang.retracted", "benign", "unknown",
         r"KV cache pool is full\. Retract requests\."),
)  # fmt: skip
"""Texts after which SGLang serves anyway."""
