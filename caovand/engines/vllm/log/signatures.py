"""Texts that vLLM prints when it fails: one row a text, with the failure it means.

A row matches only lines that can be evidence: an ERROR of vLLM's logger, the last line of a
traceback, or a raw line of a library or of the kernel. INFO and WARNING lines may quote prompts and
never count. `tests/samples/<id>.log` has real lines for each row, and lines it must not match.

Order matters within a line: the first matching row wins. Between lines, `cause.py` decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.core.healing.failure import Failure
from caovand.engines.common import kernel
from caovand.engines.common.signature import Signature, first, signature
from caovand.engines.vllm.log.line import Parts

_LOADING: Mapping[str, Failure] = dict.fromkeys(
    ("resolve", "engine", "load", "drafter"), "device-oom-load"
)
_OOM_BY_PHASE: Mapping[str, Failure] = {
    **_LOADING,
    **dict.fromkeys(("profile", "compile", "kv", "capture", "warmup"), "device-oom-capture"),
}
_DISK_BY_PHASE: Mapping[str, Failure] = {"compile": "compile-failed", "profile": "compile-failed"}
_READING: Mapping[str, Failure] = dict.fromkeys(_LOADING, "model-missing")
# Before the engine's process exists, and when it listens: the address is that of the listener.
_LISTENING: Mapping[str, Failure] = dict.fromkeys(("resolve", "http"), "bad-arguments")
# After suspend this is all the driver says when a card is opened.
_OPENING: Mapping[str, Failure] = dict.fromkeys(("resolve", "engine"), "gpu-absent")
# A proven engine lacks nothing: while it serves, the cause is one odd request.
_SERVED: Mapping[str, Failure] = {"serving": "engine-died"}
_SPLITTING: Mapping[str, Failure] = {
    **_SERVED, **dict.fromkeys(("resolve", "engine", "load"), "bad-arguments"),
}  # fmt: skip
_GIB = r"[\d.]+"

SIGNATURES: tuple[Signature, ...] = (
    # Memory of the card
    signature("oom.load", "cause", "device-oom-load",
         r"Failed to load model - not enough GPU memory"),
    signature("oom.sampler", "cause", "sampler-oom",
         r"CUDA out of memory occurred when warming up sampler with (?P<requests>\d+) dummy"),
    signature("oom.kv.none", "cause", "kv-cache-none",
         r"No available memory for the cache blocks|Cannot auto-fit max_model_len: not enough"),
    signature("oom.kv.len", "cause", "kv-cache-short",
         r"To serve at least one request with the models?'s max seq len \((?P<len>\d+)\), "
         rf"\((?P<need>{_GIB}) GiB KV\s+cache is needed.{{0,200}}?memory \((?P<have>{_GIB}) GiB\)\."
         r"(?: Based on the available memory, the estimated maximum model length is "
         r"(?P<fits>\d+))?"),
    signature("oom.kv.tokens", "cause", "kv-cache-short",
         r"max seq len \((?P<len>\d+)\) is larger than the maximum number of tokens that can be "
         r"stored in KV cache \((?P<fits>\d+)\)"),
    signature("vram.busy", "cause", "vram-busy",
         rf"Free memory on device(?: \S+)? \((?P<free>{_GIB})/(?P<total>{_GIB}) GiB\) on startup "
         r"is less than desired GPU memory utilization "
         rf"\((?P<share>{_GIB}), (?P<wanted>{_GIB}) GiB\)"),
    signature("vram.race", "cause", "vram-busy",
         r"Error in memory profiling\. Initial free memory (?P<before>[\d.]+)"),
    signature("ram.busy", "cause", "vram-busy",
         rf"Available memory on node (?P<node>\d+) \((?P<free>{_GIB})/(?P<total>{_GIB}) GiB\) on "
         r"startup is less than desired CPU memory utilization "
         rf"\((?P<share>{_GIB}), (?P<wanted>{_GIB})"),
    signature("ram.kv", "cause", "host-oom",
         rf"Available memory on node (?P<node>\d+) \((?P<free>{_GIB})/(?P<total>{_GIB}) GiB\) on "
         rf"kv cache allocation is less than requested memory for kv \((?P<wanted>{_GIB})"),
    signature("ram.alloc", "cause", "host-oom",
         r"DefaultCPUAllocator: can't allocate memory|^MemoryError\b"
         r"|Unable to allocate [\d.]+ [GM]iB for an array|\[Errno 12\] Cannot allocate memory"
         r"|Cannot allocate memory \(12\)|std::bad_alloc|Unexpected bus error encountered"),
    # ninja's 137 is SIGKILL; ninja names the target, the compilers' drivers the killed program
    signature("build.killed", "cause", "host-oom",
         r"^FAILED: \[code=137\] (?P<object>\S{1,400})"
         r"|(?P<compiler>(?<=Killed signal terminated program )[\w+.-]{1,40}"
         r"|(?<=')[^'\s]{1,80}(?=' died due to signal 9)"
         r"|(?<=internal compiler error: Killed \(program )[\w+.-]{1,40})"),
    # The device
    *kernel.CARD_LOST,
    signature("nvml.unknown", "cause", "gpu-absent",
         r"NVMLError_Unknown\b|Failed to initialize NVML: Unknown Error"),
    signature("gpu.absent", "cause", "gpu-absent",
         r"No CUDA GPUs are available|no CUDA-capable device is detected|CUDA unknown error"
         r"|cudaErrorUnknown|Driver/library version mismatch|Found no NVIDIA driver on your system"
         r"|CUDA driver version is insufficient|Failed to infer device type|Error 80[34]: "
         r"|NVIDIA driver on your system is too old|libcuda\.so\.1: cannot open shared object"
         r"|CUDA error: (?:invalid device ordinal|initialization error)"
         r"|Error 802: system not yet initialized|NVML/RM version mismatch"
         r"|NVMLError_(?:DriverNotLoaded|LibraryNotFound)\b"),
    signature("cuda.unknown", "cause", "launch-failure",
         r"CUDA error: unknown error", _OPENING),
    signature("gpu.count", "cause", "gpu-absent",
         r"World size \((?P<wanted>\d+)\) is larger than the number of available GPUs"
         r"(?: \((?P<found>\d+)\))?"),
    signature("cuda.arch", "cause", "backend-unsupported",
         r"no kernel image is available for execution on the device"
         r"|CUDA error: invalid device function|cudaErrorUnsupportedPtxVersion"
         r"|provided PTX was compiled with an unsupported toolchain"
         r"|is for sm\d+-sm\d+, but was built for sm\d+|No compiled (?P<kernel>\w{1,60}) "),
    signature("cuda.illegal", "cause", "illegal-access",
         r"an illegal memory access was encountered|cudaErrorIllegalAddress"
         r"|CUDA_ERROR_ILLEGAL_ADDRESS"),
    signature("cuda.launch", "cause", "launch-failure",
         r"unspecified launch failure|cudaErrorLaunchFailure|device-side assert triggered"
         r"|CUDA error: misaligned address|CUDA error: an illegal instruction was encountered"
         r"|CUDA error: operation not permitted when stream is capturing"
         r"|cudaErrorStreamCapture\w+"),
    # A fault surfaces in the next library that launches a kernel, which cannot explain it
    signature("cublas.failed", "generic", "launch-failure",
         r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)"),
    kernel.XID_APP,
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
    signature("jit.nvcc", "generic", "jit-toolchain",
         r"Could not find nvcc|nvcc fatal|nvcc: not found|No such file or directory: '\S*nvcc'"
         r"|ninja: build stopped: subcommand failed|Ninja build failed"
         r"|No such file or directory: 'ninja'|CUDA_HOME environment variable is not set"
         r"|Error building extension '|Ninja is required to load C\+\+ extensions"
         r"|libcuda\.so cannot found"),
    signature("jit.ptxas", "generic", "jit-toolchain",
         r"PTXASError\b|Internal Triton PTX codegen error|`ptxas` failed with|^ptxas fatal"),
    signature("jit.cc", "cause", "jit-toolchain",
         r"Failed to find C compiler|InvalidCxxCompiler|No working C\+\+ compiler found"
         r"|^(?=.*returned non-zero exit status).*(?:gcc|g\+\+|cc|clang)'?, "
         r"|fatal error: Python\.h: No such"),
    signature("backend.attention", "cause", "backend-unsupported",
         r"No valid attention backend found for|Selected backend \S+ is not valid for this config"
         r"|is not valid for this configuration|FP8 KV cache is not supported by"
         r"|Invalid attention backend for|FlashAttention only supports Ampere"
         r"|FlashAttention does not support \S{1,40} kv-cache"
         r"|For FP8 input, output must have dtype BF16"
         r"|'_OpNamespace' '_vllm_fa\d_C' object has no attribute"),
    signature("backend.dtype", "cause", "backend-unsupported",
         r"Bfloat16 is only supported on GPUs with compute capability of at least "
         r"(?P<needs>[\d.]+)"),
    signature("backend.quantization", "cause", "backend-unsupported",
         r"quantization method (?P<method>\S{1,100}) is not supported for the current GPU"
         r"|torch\.(?P<dtype>\w{1,40}) is not supported for quantization method (?P<scheme>\w+)"
         r"|(?P<other>\b\w{1,40}) quantization is currently not supported in"
         r"|kv_cache_dtype.{0,200}is not supported|fp8e4nv not supported in this architecture"
         r"|Failed to find a kernel that can implement the (?P<kernel>\w+)"
         r"|W8A8(?:-INT8)? is not supported by (?P<input>marlin) kernel"),
    # Compiling
    signature("cache.stale", "cause", "compile-cache-stale",
         r"vLLM failed to compile the model\. The most likely reason"
         r"|AssertionError: expected size (?P<expected>\d+)==(?P<found>\d+)"
         r"|Expected tensors only, but got"
         r"|torch_(?:aot_)?compile.{0,400}\b(?:corrupt|truncated|UnpicklingError)"),
    signature("disk.full", "cause", "unknown",
         r"No space left on device(?:: '(?P<path>[^']{1,200})')?", _DISK_BY_PHASE),
    signature("disk.error", "cause", "unknown",
         r"^OSError: \[Errno (?:5|116)\]|\(os error (?:5|116)\)", _READING),
    signature("compile.recursion", "cause", "compile-failed",
         r"^RecursionError: maximum recursion depth"),
    # Arguments that vLLM refuses
    signature("args.cli", "cause", "bad-arguments",
         r"^(?:vllm|vllm serve|(?:api_server|main)\.py(?: serve)?|\S{0,40}vllm\S{0,40}): error: "
         r"(?:argument (?P<argument>\S+): |unrecognized arguments: (?P<unknown>\S+))?"),
    signature("args.length", "cause", "bad-arguments",
         r"User-specified max_model_len \((?P<len>\d+)\) is greater than the derived "
         r"max_model_len \(\w+=(?P<longest>[\d.]+)"),
    signature("args.split", "cause", "bad-arguments",
         r"(?<!\d)(?P<heads>\d{1,9})\) must be divisible by tensor parallel size"
         r"|^AssertionError: \d+ is not divisible by \d+$"
         r"|is not divisible by\s+min_thread_[nk]|is not divisible by weight quantization block"
         r"|input size is not aligned with the quantized weight shape"),
    signature("args.uneven", "generic", "unknown",
         r"^ZeroDivisionError: "
         r"|^(?:ValueError|AssertionError|RuntimeError): .{0,300}\bdivisible by\b", _SPLITTING),
    signature("args.combination", "cause", "bad-arguments",
         r"Quantization method specified in the model config|Unknown quantization method"
         r"|Unsupported speculative method|The supplied chat template string"
         r"|invalid (?:tool call|reasoning) parser: (?P<parser>[\w.-]{1,60})"
         r"|block_size \(\d+\) must be <= max_num_batched_tokens"
         r"|max_num_batched_tokens \(\d+\) is smaller than max_model_len"),
    signature("args.address", "generic", "unknown",
         r"\[Errno 99\]|^socket\.gaierror: ", _LISTENING),
    signature("engine.package", "cause", "bad-arguments",
         r"^ModuleNotFoundError: No module named '(?P<module>bitsandbytes|gguf|compressed_tensors"
         r"|torchao|gptqmodel|auto_gptq|timm|open_clip|sentencepiece|tiktoken|mistral_common|av"
         r"|librosa|soundfile|runai_model_streamer|tensorizer)\b"
         r"|^ImportError: Please install (?P<package>[\w.-]{1,60})"),
    signature("engine.broken", "cause", "bad-arguments",
         r"^(?:ImportError|OSError): (?P<library>[^\s:]{1,200}\.so[\w.]{0,20}): "
         r"(?:cannot open shared object file|undefined symbol: )"
         r"|'_OpNamespace' '_\w{0,30}' object has no attribute '(?P<operator>\w{1,60})'"
         r"|^ModuleNotFoundError: No module named '(?P<part>vllm\.\w{0,30}_C\w{0,20})'", _SERVED),
    signature("model.architecture", "cause", "bad-arguments",
         r"Model architectures \['(?P<architecture>[^']{0,200})'.{0,400}\] "
         r"(?:are not supported|failed to be)"
         r"|model type `(?P<model_type>[^`]{1,200})` but Transformers does not recognize"),
    # The model's files
    signature("model.missing", "cause", "model-missing",
         r"Cannot find any model weights with|Weight files referenced in index but missing"
         r"|weights were not initialized from checkpoint|Could not detect config format"
         r"|is not a local folder and is not a valid model identifier"
         r"|Invalid repository ID or local directory specified|RepositoryNotFoundError"
         r"|Repo id must (?:be in the form|use alphanumeric chars)|RevisionNotFoundError"
         r"|does not appear to have (?:a file named|files named)|outgoing traffic has been disabled"
         r"|OfflineModeIsEnabled|offline mode is enabled|is not a valid JSON file"
         r"|Can't load (?:the )?(?:configuration|tokenizer)|instantiate the backend tokenizer"
         r"|Unrecognized model in |No model architectures are specified"
         r"|^FileNotFoundError: .{0,40}No such file or directory: .{0,400}"
         r"(?:\.(?:safetensors|gguf|bin|pth?|jinja)|/(?:tokenizer\w*|\w*config|\S*\.index)\.json)\b"),
    signature("model.json", "generic", "unknown",
         r"^json\.decoder\.JSONDecodeError: "
         r"|^  Value error, [^\[]{0,120}: line \d+ column \d+ \(char \d+\)",
         {**_READING, **_SERVED}),
    signature("model.broken", "cause", "model-missing",
         r"SafetensorError: |Error while deserializing header|MetadataIncompleteBuffer"
         r"|PytorchStreamReader failed|There is no module or parameter named \S+ in "
         r"|^AssertionError: (?:Attempted to load weight \(|Tried to load weights of size )"),
    signature("model.denied", "cause", "access-denied",
         r"^PermissionError: \[Errno 13\] Permission denied(?:: '(?P<path>[^']*)')?"
         r"|^OSError: PermissionError at (?P<file>\S{1,400}) when downloading"),
    signature("hub.denied", "cause", "access-denied",
         r"GatedRepoError|You are trying to access a gated repo|Cannot access gated repo"
         r"|40[13] Client Error"),
    signature("hub.network", "cause", "network",
         r"LocalEntryNotFoundError|Max retries exceeded with url|50[0234] Server Error"
         r"|429 Client Error|CAS service error"
         r"|Temporary failure in name resolution|We couldn't connect to 'https?://"
         r"|^(?:requests|httpx|httpcore|urllib3|aiohttp)\.\S*"
         r"(?:Connect|Timeout|Proxy|RemoteProtocolError|ReadError|ChunkedEncodingError)"
         r"\w*(?:: |$)"),
    signature("port.busy", "cause", "port-busy",
         r"\[Errno 98\].{0,200}[Aa]ddress already in use|\bEADDRINUSE\b"),
    # Ray, and what caovan's own launcher says of it
    signature("ray.missing", "cause", "bad-arguments",
         r"^ModuleNotFoundError: No module named 'ray'|^ValueError: Failed to import Ray: "),
    signature("ray.mismatch", "cause", "bad-arguments",
         r"^RuntimeError: Version mismatch: The cluster was started with:"),
    signature("ray.token", "cause", "bad-arguments",
         r"^ray\.exceptions\.AuthenticationError: "),
    signature("ray.nodes", "cause", "node-lost",
         r"^RayNodeError: (?P<fact>cannot join .*|vLLM cannot start: .*)"),
    signature("ray.gcs", "generic", "node-lost",
         r"Timed out while waiting for GCS to become available|Failed to connect to GCS"),
    signature("ray.resources", "cause", "node-lost",
         r"Cannot provide a placement group|^ValueError: Current node has no GPU available"
         r"|No available node types can fulfill resource request"
         r"|^ValueError: Attempting to start raylet with (?P<wanted>\d+) GPU, but"),
    # The host
    kernel.HOST_KILLED,
    # vLLM's configuration refuses; rows above have the known reasons
    signature("args.value", "cause", "bad-arguments",
         r"^  Value error, (?P<reason>(?:(?! \[type=).)+)"),
    # Torch reports a card out of memory; rows above know more precisely where
    signature("oom.cuda", "generic", "device-oom-run",
         r"(?:torch\.(?:cuda\.)?OutOfMemoryError|(?:CUDA|HIP|XPU|NPU) out of memory\."
         r"|CUDA (?:driver )?[Ee]rror: out of memory|cudaErrorMemoryAllocation"
         r"|Triton Error \[CUDA\]: out of memory|NVML_SUCCESS == r INTERNAL ASSERT"
         r"|CUBLAS_STATUS_ALLOC_FAILED)"
         r"(?:.{0,200}?Tried to allocate (?P<wanted>[\d.]{1,20} \w{1,10})\. GPU (?P<gpu>\d{1,4})"
         r"(?: has a total capacity of (?P<total>[\d.]{1,20} \w{1,10}))?)?",
         _OOM_BY_PHASE),
    signature("cuda.other", "generic", "launch-failure",
         r"(?:torch\.AcceleratorError|RuntimeError): (?:(?:CUDA|HIP) error|Triton Error \[CUDA\]): "
         r"(?P<error>.+)"),
    signature("compile.failed", "generic", "compile-failed",
         r"^torch\._(?:inductor|dynamo)\.exc\.\w+|BackendCompilerFailed|CppCompileError"
         r"|^triton\.compiler\.errors\.\w+"),
    signature("args.refused", "generic", "bad-arguments",
         r"^pydantic(?:_core)?\S*ValidationError: .* for (?P<section>\w+)"),
    signature("nccl.failed", "consequence", "collective-timeout",
         r"Watchdog caught collective operation timeout: WorkNCCL\("
         r"(?:.{0,200}?OpType=(?P<operation>\w{1,60}))?"
         r"|NCCL error: (?:unhandled|remote|internal|invalid)|NCCL error in: "
         r"|custom_all_reduce\.cuh:\d+ '(?P<error>[^']{0,200})'"),
    signature("rpc.timeout", "consequence", "hang",
         r"RPC call to (?P<call>\w+) timed out"),
    signature("start.timeout", "consequence", "start-stall",
         r"Timed out waiting for engine core processes to"
         r"|Did not receive response from front-end"
         r"|DistStoreError: Timed out after \d+ seconds waiting for clients"),
    signature("watchdog.dump", "consequence", "hang",
         r"^\[Watchdog\]Dumped stack to (?P<dump>\S{1,400}) due to"),
    signature("memory.corrupt", "consequence", "engine-died",
         r"^(?P<what>malloc\(\): .*|free\(\): .*|double free or corruption.*|corrupted .*"
         r"|munmap_chunk.*)$"),
    signature("signal.fatal", "consequence", "engine-died",
         r"^(?:Fatal Python error: (?P<error>[\w ]+)|!!!!!!! Segfault encountered)"),
    signature("worker.died", "consequence", "engine-died",
         r"Worker proc (?P<worker>\S+) died unexpectedly(?: \(exit code: (?P<code>-?\d+|None)\))?"
         r"|RayWorkerProc rank=\[?(?P<rank>\d{1,9})(?:, \d{1,9}){0,64}\]? died unexpectedly"),
    signature("ray.actor", "consequence", "engine-died",
         r"^ray\.exceptions\.(?P<error>Actor(?:Died|Unavailable)Error|WorkerCrashedError"
         r"|OwnerDiedError)(?:: (?P<silent>The (?:actor|worker) died unexpectedly)?|$)"),
    signature("ray.node.died", "consequence", "node-lost",
         r"^ray\.exceptions\.(?P<error>NodeDiedError|LocalRayletDiedError)(?:: |$)"
         r"|^RayNodeError: Ray on this node ended \(exit status (?P<status>\d+)\)"),
    signature("ray.channel", "consequence", "hang",
         r"^ray\.exceptions\.(?P<error>RayChannelTimeoutError|GetTimeoutError)(?:: |$)"),
    signature("engine.exited", "consequence", "engine-died",
         r"MPClient: engine core exited unexpectedly"
         r"|Engine core proc(?:ess)? (?P<engine>\S+) died unexpectedly"
         r"|^RuntimeError: Process (?P<process>\S+) \(PID: \d+\) died with exit code "
         r"(?P<code>-?\d+)"),
    # A process reports what ends it
    signature("engine.dead", "wrapper", "engine-died",
         r"EngineCore (?:failed to start|encountered a fatal error)"
         r"|WorkerProc (?:hit an exception|initialization failed due to an exception"
         r"|failed to start|failed\.)|RayWorkerProc failed"
         r"|Worker failed with error"),
    # The API server lost the engine core: after the lines of the last row, or without a word
    signature("engine.lost", "wrapper", "engine-died",
         r"AsyncLLM output_handler failed|EngineDeadError|EngineCore encountered an issue"
         r"|Engine core initialization failed"
         r"(?:.{0,200}Failed core proc\(s\): \{'\w{1,40}': (?P<code>-?\d{1,3}))?"),
    # Alarming but harmless
    signature("benign.flash-attention", "benign", "unknown",
         r"Cannot use FA version (?P<version>\d+) is not supported due to"),
    signature("benign.cache-reload", "benign", "unknown",
         r"Compiling model again due to a load failure from (?P<file>\S+), reason:"),
    signature("benign.gdn-warmup", "benign", "unknown",
         r"GDN prefill kernel warmup \(T=(?P<tokens>\d+)\) failed for"),
    signature("benign.free-memory", "benign", "unknown",
         r"Free memory on device \(\S+ GiB\) on startup\. Desired GPU memory utilization is"),
    signature("benign.shared-memory", "benign", "unknown",
         r"No available shared memory broadcast block found in (?P<seconds>\d+) seconds"),
    signature("benign.jit", "benign", "unknown",
         r"(?:JIT compilation|autotuning benchmark)\b.{0,40} ?during inference"),
    signature("benign.ulimit", "benign", "unknown",
         r"Found ulimit of (?P<files>\d+) and failed to automatically increase"),
    signature("benign.process-group", "benign", "unknown",
         r"destroy_process_group\(\) was not called before program exit"),
)  # fmt: skip

BY_ID: Mapping[str, Signature] = {row.id: row for row in SIGNATURES}
_FAILING = tuple(s for s in SIGNATURES if s.kind != "benign")
_BENIGN = tuple(s for s in SIGNATURES if s.kind == "benign")

# How a raw line must begin to be evidence: an exception's name, a program's error, a C++ log
# prefix, the kernel. Source lines inside a traceback are indented and never match.
_EXCEPTION = re.compile(
    r"(?:socket\.gaierror|(?:\w+\.)+_?[A-Z]\w*"
    r"|_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|OutOfResources))(?:: |$)"
)
_RAW = re.compile(
    r"(?:  Value error, |  what\(\): |\[rank\d+\]"
    r"|[\w./+ -]{1,60}: (?:fatal |internal compiler )?error\b"
    r"|nvcc (?:fatal|error)|ninja: |FAILED: \[code=|FATAL: kernel |Fatal Python error: "
    r"|!!!!!!! |malloc\(\)|free\(\)|double free|corrupted "
    r"|munmap_chunk|terminate called|what\(\): |CUDA [Ee]rror|ptxas (?:error|fatal)"
    r"|Failed: Cuda error|Search for `cuda)"
)


def is_exception(message: str) -> bool:
    """Whether a message is the last line of a Python traceback."""
    return _EXCEPTION.match(message) is not None


def is_crash(message: str) -> bool:
    """Whether a raw line comes from a library or the kernel, not from Python."""
    return bool(_RAW.match(message) or kernel.KERNEL_LINE.match(message))


def is_evidence(parts: Parts) -> bool:
    """Whether a line of this kind can be evidence of a failure."""
    message = parts.message
    if parts.level in ("ERROR", "CRITICAL"):
        dump = parts.source.endswith("dump_input.py")  # the scheduled batch, prompts included
        return not dump and (message[:2] != "  " or message.startswith("  Value error, "))
    if parts.level:
        # Newer versions log a dead or hung engine core as a WARNING.
        return parts.level == "WARNING" and parts.source.endswith(
            ("core_client.py", "watch_dog.py")
        )
    return is_exception(message) or is_crash(message)


def match(parts: Parts) -> tuple[Signature, Mapping[str, str]] | None:
    """The row that matches a line, and the values it reads; None if it is not evidence."""
    return first(_FAILING, parts.message) if is_evidence(parts) else None


def benign(message: str) -> Signature | None:
    """The row for an alarming message that is harmless."""
    found = first(_BENIGN, message)
    return found[0] if found else None
