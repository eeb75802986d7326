"""Ray, the host, general causes, consequences, wrappers, and harmless texts."""

from __future__ import annotations

from caovand.engines.common.logs.rows import kernel
from caovand.engines.common.logs.signature import Signature, signature
from caovand.engines.vllm.log.rows.by_phase import OOM_BY_PHASE

ROWS: tuple[Signature, ...] = (
    # Ray, and messages of caovan's own launcher about it
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
    signature("ray.address", "cause", "node-lost",
         r"(?:No available node types can fulfill resource request.{0,60}"
         r"|Cannot provide a placement group requiring .{0,60}placement_group_specs=.{0,60})"
         r"'node:(?:(?P<address>[\da-fA-F.:]{3,45})|(?P<name>[^']{1,200}))'"),
    signature("ray.resources", "cause", "node-lost",
         r"Cannot provide a placement group"
         r"|(?P<driver>Ray does not allocate any GPUs on the driver node"
         r"|^ValueError: Current node has no GPU available)"
         r"|No available node types can fulfill resource request"
         r"|^ValueError: Attempting to start raylet with (?P<wanted>\d+) GPU, but"),
    # Ray Serve's bundle for the whole replica, of which vLLM wants one a rank
    signature("ray.bundle", "cause", "bad-arguments",
         r"Placement group bundle cannot have more than 1 \w{1,10}"),
    # vLLM waits for them: a cluster may still grow
    signature("ray.short", "consequence", "node-lost",
         r"number of required (?:GPUs|\w{1,10}s) exceeds the total number of available"
         r"|[Pp]arallel size \((?P<wanted>\d{1,6})\) exceeds available GPUs \((?P<found>\d{1,6})\)"
         r"|Waiting for creating a placement group of specs for (?:[3-9]\d|\d{3,6}) seconds"
         r"(?:\. specs=\[\{.{0,40}?'node:(?P<address>[\da-fA-F.:]{3,45})')?"),
    # The host
    kernel.HOST_KILLED,
    # vLLM's configuration refuses; rows above have the known reasons
    signature("args.value", "cause", "bad-arguments",
         r"^(?:  )?(?:(?:Value error|Assertion failed), )?"
         r"(?P<reason>(?:(?! \[type=).){1,1000}) \[type=[a-z_]{1,40}[,\]]"
         r"|^  Value error, (?P<all>.{1,1000})"),
    # Torch reports a card out of memory; rows above know more precisely where
    signature("oom.cuda", "generic", "device-oom-run",
         r"(?:torch\.(?:cuda\.)?OutOfMemoryError|(?:CUDA|HIP|XPU|NPU) out of memory(?:\.| occ)"
         r"|CUDA (?:driver )?[Ee]rror: out of memory|cudaErrorMemoryAllocation"
         r"|Triton Error \[CUDA\]: out of memory|NVML_SUCCESS == r INTERNAL ASSERT"
         r"|CUBLAS_STATUS_ALLOC_FAILED)"
         r"(?:.{0,200}?Tried to allocate (?P<wanted>[\d.]{1,20} \w{1,10})\. GPU (?P<gpu>\d{1,4})"
         r"(?: has a total capacity of (?P<total>[\d.]{1,20} \w{1,10}))?)?",
         OOM_BY_PHASE),
    signature("cuda.other", "generic", "launch-failure",
         r"(?:torch\.AcceleratorError|RuntimeError): (?:(?:CUDA|HIP) error|Triton Error \[CUDA\]): "
         r"(?P<error>.+)"),
    signature("compile.failed", "generic", "compile-failed",
         r"^torch\._(?:inductor|dynamo)\.exc\.\w+|BackendCompilerFailed|CppCompileError"
         r"|\bauto_functionalized was not removed"
         r"|^triton\.compiler\.errors\.\w+|^RuntimeError: PassManager::run failed"),
    # The reason is in the lines after it
    signature("args.refused", "consequence", "bad-arguments",
         r"^pydantic(?:_core)?\S*ValidationError: .* for (?P<section>\w+)"),
    signature("nccl.failed", "consequence", "collective-timeout",
         r"ProcessGroupNCCL's watchdog got stuck|Watchdog caught collective operation timeout"
         r"(?:: WorkNCCL\(.{0,200}?OpType=(?P<operation>\w{1,60}))?"
         r"|NCCL [Ee]rror(?: \d{1,2})?: (?:unhandled|remote|internal|invalid)|NCCL error in: "
         r"|^nccl(?:System|Internal|Remote|UnhandledCuda)Error: "
         r"|custom_all_reduce\.cuh:\d+ '(?P<error>[^']{0,200})'"
         r"|^Failed: Cuda error \S{1,200}/custom_all_red"),
    # Where another failure follows, the library may not have been needed
    signature("nccl.unloaded", "generic", "bad-arguments",
         r"^Failed to load NCCL library from (?P<library>\S{1,200})"),
    # The engine loop before the V1 engine
    signature("step.timeout", "consequence", "hang", r"^Engine iteration timed out"),
    signature("rpc.timeout", "consequence", "hang",
         r"RPC call to (?P<call>\w+) timed out|^TimeoutError at \S{1,100}shm_broadcast\.py:"),
    signature("start.timeout", "consequence", "start-stall",
         r"Timed out waiting for engine(?:s| core processes) to"
         r"|Did not receive response from front-end"
         r"|DistStoreError: Timed out after \d+ seconds waiting for clients"),
    signature("watchdog.dump", "consequence", "hang",
         r"^\[Watchdog\]Dumped stack to (?P<dump>\S{1,400}) due to"),
    signature("memory.corrupt", "consequence", "engine-died",
         r"^(?P<what>malloc\(\): .*|free\(\): .*|double free or corruption.*|corrupted .*"
         r"|munmap_chunk.*)$"),
    signature("signal.fatal", "consequence", "engine-died",
         r"^(?:Fatal [Pp]ython error: ?(?P<error>[\w ]+)|!!!!!!! Segfault encountered)"),
    signature("worker.died", "consequence", "engine-died",
         r"Worker proc (?P<worker>\S+) died unexpectedly(?: \(exit code: (?P<code>-?\d+|None)\))?"
         r"|^Worker VllmWorkerProcess pid \d{1,10} died, exit code: "
         r"|^ChildProcessError: worker died$"
         r"|RayWorkerProc rank=\[?(?P<rank>\d{1,9})(?:, \d{1,9}){0,64}\]? died unexpectedly"),
    signature("ray.actor", "consequence", "engine-died",
         r"^(?:ray\.exceptions\.(?P<error>Actor(?:Died|Unavailable)Error|WorkerCrashedError"
         r"|OwnerDiedError)(?:: |$)|(?=The actor is dead because ))"
         r"(?P<silent>The (?:actor|worker) (?:died unexpectedly|is dead because its worker "
         r"process has died))?"),
    signature("ray.node.died", "consequence", "node-lost",
         r"^ray\.exceptions\.(?P<error>NodeDiedError|LocalRayletDiedError)(?:: |$)"
         r"|^RayNodeError: Ray on this node (?:ended|exited) \(exit status (?P<status>\d+)\)"),
    signature("ray.channel", "consequence", "hang",
         r"^ray\.exceptions\.(?P<error>RayChannelTimeoutError|GetTimeoutError)(?:: |$)"),
    signature("engine.exited", "consequence", "engine-died",
         r"MPClient: engine core exited unexpectedly|(?:MQ|Async)LLMEngine is already dead"
         r"|(?:RuntimeError\(')?Engine process \(pid \d{1,10}\) died|Engine loop has died"
         r"|Engine core proc(?:ess)? (?P<engine>\S+) died unexpectedly"
         r"|^RuntimeError: Process (?P<process>\S+) \(PID: \d+\) died with exit code "
         r"(?P<code>-?\d+)"),
    # An object of the engine's own code lacks what its code asks for
    signature("engine.fault", "generic", "unknown",
         r"Worker failed with error ['\"]{1,2}'(?P<holder>[A-Z]\w{1,60})' object has no attribute "
         r"'(?P<member>\w{1,60})"),
    # A process reports the error that ends it
    signature("engine.dead", "wrapper", "engine-died",
         r"EngineCore (?:failed to start|encountered a fatal error|hit an exception)"
         r"|WorkerProc (?:hit an exception|initialization failed due to an exception"
         r"|failed to start|failed\.)|RayWorkerProc failed"
         r"|Mul(?:ti|it)procExecutor got fatal signal from worker processes"
         r"|Worker failed with error|^Error executing method \w{1,60}\. This might cause deadlock"),
    # The API server lost the engine core: after the lines of the last row, or silently
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
ALONE = signature("ray.alone", "cause", "bad-arguments",
    next(row for row in ROWS if row.id == "ray.short").pattern.pattern)  # fmt: skip
"""The same where vLLM started Ray itself, on this machine alone: no other node will join."""
