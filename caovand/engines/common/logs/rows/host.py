"""Messages about something that the host denies: shared memory, sockets, a newer driver, a card, a
library.

They affect every engine alike: its table begins with these rows.
"""

from __future__ import annotations

import re

from caovand.engines.common.logs.rows import (
    clients,
    container,
    cuda_state,
    desktop,
    exits,
    files,
    kernel,
    rocm,
    servers,
    studio,
    system,
    unreached,
)
from caovand.engines.common.logs.signature import signature

_RAW = re.compile(
    r"['‘]?(?:The term ['‘])?[\w./-]{1,60}['’] is not recognized as "
    r"|Failed to initialize NVML\b|NVIDIA-SMI (?:has failed|couldn't find) "
    r"|(?:/bin/|-)?\w{0,4}sh: (?=.{0,250}(?:not found|denied))|/bin/\w{0,4}sh: "
    r"|ERROR \(catatonit|\[FATAL tini "
    r"|(?:\(raylet\) )?(?:Refer to the documentation on how to address the out of memory issue: "
    r"|To adjust the kill threshold, set the environment variable `RAY_)"
    r"|Memory on the node \(IP: |.{0,200}\bkilled due to memory pressure \(OOM\)"
    r"|Back-off restarting failed |No devices were found|libnvidia-ml\.so in GDK"
    r"|.{0,120}\bOOMKilled\b|[\w@.:-]{1,100}\.service: |.{0,60}\bUnit \S{1,60}\.service "
    r"|A process of this unit has been killed"
    r"|Killed /\S{1,300} due to|sending SIG(?:TERM|KILL) to process|.{0,200}\bnvidia\.com/gpu\b"
    r"|(?:\S{1,60}: line \d{1,6}: +\d{1,10} )?(?:Segmentation fault|Aborted|Illegal instruction"
    r"|Bus error|Floating point exception)\b"
    r"|(?:\[\d{1,4}\])? {0,8}(?:\+ {1,4})?\d{2,10} (?:segm|abor|ille|bus |ki)"
    r"|zsh: (?:segm|abor|ille|bus |ki)|\S{1,60}: line \d{1,6}: +\d{1,10} Killed"
    r"|fish: (?:Job \d|Process)|Killed$|PID \d{1,10} received SIG|Fatal signal \d"
    r"| {0,8}(?:Warning|Normal) {1,6}\w{3,30} "
    r"| {0,12}Exit Code: {1,12}\d"
    r"|modprobe: (?:ERROR|FATAL)|Unable to determine the device handle"
    r"|(?:.{0,60}: )?symbol lookup error: |[^\s:]{1,200}: symbol lookup error: "
    r"|[^\s:]{1,200}: error while loading shared libraries: "
    r"|(?:[^\s:]{1,200}: )?[^\s:]{1,300}\.so[\w.]{0,20}: version [`']"
    r"|nvidia-docker \| "
    r"|\s{0,4}[\w-]{0,30}nvidia-[\w.:+-]{1,60} ?: (?:Pre)?(?:Depends|Breaks|Confl)"
    r"|(?:[EW]: |Err:\d).{0,160}\bnvidia\b|E: Unable to locate package "
    r"|libgomp: Thread creation failed|OpenBLAS blas_thread_init: pthread_create failed"
    r"|Program terminated with signal |(?:> )?Exception Type: {1,20}EXC_| {0,8}\[\[ [A-Z]"
    r"|(?:\[[\w.-]{1,40}\] {1,3})?(?:dyld(?:\[\d{1,7}\])?: | {0,8}(?:Referenced from|Expected in"
    r"|Reason): )|-> CUDA driver |dxcore initialization failed"
    r"|invoking the NVIDIA Container Runtime Hook"
    r"|.{0,200}file creation failed: \S{1,400}: file exists"
    r"|https?://[^\s\"]{1,100} \"[A-Z]{3,7} https?://"
)

ROWS = (
    *system.ROWS,
    *files.ROWS,
    *clients.ROWS,
    signature("shm.full", "cause", "shm-full",
         r"[Ee]rror while creating shared memory segment(?: (?P<path>/dev/shm/\S{1,100}))?"
         r"|No space left on device.{0,100}/dev/shm/|/dev/shm/.{0,100}No space left on device"
         r"|might be caused by insufficient shared memory|out of shared memory\b.{0,60}\bshm"
         r"|unable to (?:open|allocate) shared memory"),
    signature("sandbox.families", "cause", "access-denied",
         r"Address family not supported by protocol"),
    *unreached.ROWS,
    *cuda_state.ROWS,
    signature("driver.behind", "cause", "backend-unsupported",
         # CUDA's number of a release: 12040 is 12.4
         r"NVIDIA driver on your system is too old"
         r"(?: \(found version (?:(?P<major>\d{1,2})0(?P<minor>\d)0\b|(?P<found>\d{4,6})))?"),
    signature("driver.old", "cause", "backend-unsupported",
         r"provided PTX was compiled with an unsupported toolchain|cudaErrorUnsupportedPtxVersion"
         r"|undefined symbol: (?P<symbol>cu[A-Z]\w{1,80})"),
    # The build has no kernels of the card, only PTX that this driver cannot compile
    signature("driver.ptx", "cause", "backend-unsupported",
         r"a PTX JIT compilation failed|cudaErrorInvalidPtx|CUDA_ERROR_INVALID_PTX"),
    signature("container.requirement", "cause", "backend-unsupported",
         r"nvidia-container-cli(?:\.real)?: requirement error: "
         r"(?:unsatisfied condition: (?P<condition>[^\\\",]{1,60}[\w.]))?"),
    *container.ROWS,
    *rocm.ROWS,
    *servers.ROWS,
    *studio.ROWS,
    *desktop.ROWS,
    signature("nvml.argument", "cause", "gpu-absent",
         r"NVMLError_(?:InvalidArgument|NotFound)\b"),
    # An error's class that cannot be made again in the process that receives it
    signature("nvml.unread", "generic", "gpu-absent",
         r"^TypeError: _extractNVMLErrorsAsClasses\."),
    signature("nvml.unsupported", "cause", "gpu-absent", r"NVMLError_NotSupported\b"),
    signature("nvml.unknown", "cause", "gpu-absent",
         r"NVMLError_Unknown\b|Failed to initialize NVML: Unknown Error"
         r"|error calling nvml\.Init: Unknown Error"),
    signature("nvml.denied", "cause", "gpu-absent",
         r"Failed to (?:initialize|start|init) (?:NVML|nvml): Insufficient Permissions"
         r"|NVMLError_NoPermission\b"),
    signature("nvml.blocked", "cause", "gpu-absent",
         r"GPU access blocked by the operating system"),
    signature("nvml.library", "cause", "gpu-absent",
         r"NVIDIA-SMI couldn't find libnvidia-ml\.so"),
    signature("nvml.none", "cause", "gpu-absent", r"^No devices were found"),
    signature("nvml.unloaded", "cause", "gpu-absent",
         r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"),
    signature("nvml.mismatch", "cause", "gpu-absent",
         r"Failed to initialize NVML: Driver/library version mismatch"
         r"|Failed to (?:initialize|start|init) (?:NVML|nvml)\b(?!: Unknown Error)"
         r"|\bnvml: Driver/library version mismatch"
         r"|libnvidia-ml\.so in GDK package is a stub library"),
    # The source of NVIDIA's packages, not the card
    signature("driver.source", "cause", "gpu-absent",
         r"^.{0,160}\bnvidia\.(?:github\.io|com)/.{0,300}?"
         r"(?P<key>NO_PUBKEY|EXPKEYSIG|is not signed)"
         r"|Unable to locate package (?P<package>(?:lib)?nvidia-[\w.-]{1,60}|cuda-[\w.-]{1,60})"),
    # nvidia-driver-530 : Depends: nvidia-kernel-common-530 (>= 530.41.03) but 530.30.02 is to be
    signature("driver.packages", "cause", "gpu-absent",
         r"^\s{0,4}(?P<package>(?:lib|linux-modules-|linux-objects-|xserver-xorg-video-)?nvidia-"
         r"[\w.+-]{1,60}(?::\w{2,5})?) ?: (?:Pre)?(?:Depends|Breaks|Conflicts): .{1,300}"
         r"(?:but |not installable)"),
    signature("unit.killed", "cause", "host-oom",
         r"Failed with result 'oom-kill'|has been killed by the OOM killer|\bOOMKilled\b"
         r"|^Killed /\S{1,300} due to memory|sending SIG(?:TERM|KILL) to process (?P<pid>\d+)"),
    signature("unit.program", "cause", "engine-unusable",
         r"\.service: .{0,100}status=203/EXEC|\.service: Failed (?:to execute|at step EXEC)"),
    signature("unit.absent", "cause", "engine-unusable",
         r"\.service: [Mm]ain process exited, code=exited, status=12[67]/"),
    signature("unit.missing", "cause", "engine-unusable",
         r"Unit (?P<unit>(?:ollama|vllm|sglang|llama[\w-]{0,20})\.service) "
         r"(?:not found|could not be found|does not exist)"),
    signature("unit.user", "cause", "bad-arguments",
         r"\.service: .{0,100}status=(?:21[67]/\w{4,5}|200/CHDIR|226/NAMESPACE)"
         r"|\.service: Failed to determine user credentials"),
    signature("pod.probe", "cause", "engine-died",
         r"[Cc]ontainer \S{1,100} failed (?P<probe>liveness|startup) probe, will be restarted"),
    signature("pod.path", "cause", "bad-arguments",
         r"probe failed: HTTP probe failed with statuscode: (?P<status>40[04-9])"),
    signature("pod.unready", "consequence", "engine-died",
         r"\b(?P<probe>Startup|Liveness) probe failed: "),
    signature("pod.restarts", "consequence", "engine-died",
         r"Back-off restarting failed container (?P<container>\S{1,100})"),
    signature("pod.ended", "consequence", "engine-died",
         r"^ {0,12}Exit Code: {1,12}(?:(?P<silent>137)|13[249])$"),
    signature("signal.instruction", "cause", "backend-unsupported",
         r"terminated by signal SIGILL|EXC_BAD_INSTRUCTION"
         r"|^(?:\S{1,60}: line \d{1,6}: +\d{1,10} |zsh: "
         r"|(?:\[\d{1,4}\])? {0,8}(?:\+ {1,4})?\d{2,10} )?[Ii]llegal (?:hardware )?instruction\b"
         r"|received SIGILL|Fatal signal \d{1,2} \(SIGILL"),
    signature("signal.ended", "consequence", "engine-died",
         r"^(?:\S{1,60}: line \d{1,6}: +\d{1,10} )?(?:Segmentation fault|Aborted(?: \(core|$)"
         r"|Bus error|Floating point exception|(?P<silent>Killed(?= {2}|$)))"
         r"|^(?:zsh: |(?:\[\d{1,4}\])? {0,8}(?:\+ {1,4})?\d{2,10} )"
         r"(?:segmentation fault|abort|bus error|killed)"
         r"|received SIG[A-Z]{2,5}\b|terminated by signal SIG[A-Z]{3,5}"
         r"|^Fatal signal \d"),
    signature("signal.core", "consequence", "engine-died",
         r"^(?:Program terminated with signal |(?:> )?Exception Type: {1,20}EXC_\w{1,40} \()"
         r"(?P<signal>SIG\w{2,6})"),
    signature("unit.ended", "consequence", "engine-died",
         r"\.service: [Mm]ain process exited, code=(?:(?P<silent>killed, status=9)|dumped"
         r"|exited, status=(?!0/|1/|2/)\d)"),
    signature("host.library", "cause", "bad-arguments",
         r": error while loading shared libraries: "
         r"(?!libcuda\.so|libnvidia-ml\.so)(?P<library>" + exits.OWNED + r"[^\s:]{0,200}): "
         r"|symbol lookup error: (?P<file>[^\s:]{1,200}): undefined symbol: "
         r"(?P<symbol>[^\s,]{1,200})"),
    # A library of the machine is found before the program's own
    signature("host.library.other", "cause", "bad-arguments",
         r"(?:^|: )(?P<library>[^\s:]{1,300}\.so[\w.]{0,20}): version [`']"
         r"(?P<version>(?!(?:GLIBC|GLIBCXX|CXXABI)_)[^'`\s]{1,80})' not found"),
    # Kubernetes creates variables for a Service, which programs read as their own settings
    signature("env.service", "cause", "bad-arguments",
         r"\b(?P<variable>[A-Z][A-Z0-9]{1,30}(?:_[A-Z0-9]{1,30}){1,5})\b.{0,40}['\"= ]"
         r"(?P<uri>tcp://[\w.:-]{3,80})"
         r"|invalid literal for int\(\) with base 10: '(?P<number>tcp://[\w.:-]{3,80})'"),
    # A client behind a proxy requests a whole address instead of a path
    signature("proxy.itself", "cause", "bad-arguments",
         r"^https?://(?P<proxy>[^\s\"]{1,100}) \"[A-Z]{3,7} https?://(?P<itself>(?:0\.0\.0\.0"
         r"|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|localhost|\[::1?\])(?::\d{1,5})?)"
         r"[^\s\"]{0,200} HTTP/[\d.]{1,3}\" (?P<status>[45]\d\d)\b"),
    signature("start.itself", "generic", "start-stall",
         r"\b(?:did not|does not|could not|failed to|never) (?:become ready|respond|answer|connect"
         r"|be reached)\b.{0,60}https?://(?P<itself>(?:0\.0\.0\.0"
         r"|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|localhost|\[::1?\])(?::\d{1,5})?)"),
    signature("weights.fp8", "cause", "backend-unsupported",
         r"fp8e4nv not supported in this architecture.{0,300} \(in (?P<kernel>\w{0,80}(?:w8a8"
         r"|scaled_mm|quant|moe|gemm|matmul|linear|block_fp8)\w{0,80})\)"),
    signature("cache.fp8", "cause", "backend-unsupported",
         r"fp8e4nv not supported in this architecture"),
)  # fmt: skip


def is_raw(line: str) -> bool:
    """Whether a line is of the kernel, the loader, a shell or a container's runtime."""
    others = (clients, container, desktop, rocm, servers, studio, unreached)
    return bool(_RAW.match(line) or kernel.KERNEL_LINE.match(line)) or any(
        rows.is_raw(line) for rows in others
    )
