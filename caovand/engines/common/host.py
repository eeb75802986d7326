"""Texts about something the host denies: shared memory, sockets, a newer driver, a card, a library.

They strike every engine alike: its table begins with these rows.
"""

from __future__ import annotations

import re

from caovand.engines.common import kernel
from caovand.engines.common.signature import signature

_RAW = re.compile(
    r"(?:docker: |Error: )?OCI runtime |.{0,200}\bError response from daemon: "
    r"|(?:stderr: )?nvidia-container-cli: |Failed to initialize NVML: |NVIDIA-SMI has failed "
    r"|/bin/\w{0,4}sh: "
    r"|[^\s:]{1,200}: error while loading shared libraries: "
)

ROWS = (
    signature("shm.full", "cause", "shm-full",
         r"[Ee]rror while creating shared memory segment(?: (?P<path>/dev/shm/\S{1,100}))?"
         r"|No space left on device.{0,100}/dev/shm/|/dev/shm/.{0,100}No space left on device"
         r"|might be caused by insufficient shared memory|out of shared memory\b.{0,60}\bshm"
         r"|unable to (?:open|allocate) shared memory"),
    signature("sandbox.families", "cause", "access-denied",
         r"Address family not supported by protocol"),
    signature("driver.old", "cause", "backend-unsupported",
         r"provided PTX was compiled with an unsupported toolchain|cudaErrorUnsupportedPtxVersion"
         r"|nvidia-container-cli: requirement error: unsatisfied condition: (?:cuda|driver)\b"),
    signature("container.gpu", "cause", "gpu-absent",
         r"nvidia-container-cli: (?P<why>\w{1,30} error: .{1,100})"
         r"|could not select device driver .{0,20}with capabilities: \[\[gpu"),
    signature("nvml.unknown", "cause", "gpu-absent",
         r"NVMLError_Unknown\b|Failed to initialize NVML: Unknown Error"),
    signature("nvml.mismatch", "cause", "gpu-absent",
         r"Failed to initialize NVML: Driver/library version mismatch"
         r"|NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"),
    signature("host.library", "cause", "bad-arguments",
         r": error while loading shared libraries: "
         r"(?!libcuda\.so|libnvidia-ml\.so)(?P<library>[^\s:]{1,200}): "),
    signature("cache.fp8", "cause", "backend-unsupported",
         r"fp8e4nv not supported in this architecture"),
)  # fmt: skip


def is_raw(line: str) -> bool:
    """Whether a line is of the kernel, the loader, a shell or a container's runtime."""
    return bool(_RAW.match(line) or kernel.KERNEL_LINE.match(line))
