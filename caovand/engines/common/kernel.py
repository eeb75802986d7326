"""Log texts of kernel and driver for the host's own failures: Xid, lost cards, the OOM killer.

They strike every engine alike, and an engine's own log repeats some of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from caovand.core.healing.failure import Finding
from caovand.engines.common.signature import first, signature

MAX_TEXT = 500  # characters kept of a line

CARD_LOST = (
    signature("xid.lost", "cause", "gpu-lost",
         r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): "
         r"(?P<xid>48|62|63|64|74|79|94|95|109|119|120"
         r"|154(?=, GPU recovery action changed from .{1,40} to .{0,10}\((?:GPU|Node|Drain))),"),
    signature("gpu.lost", "cause", "gpu-lost",
         r"fallen off the bus|GPU is lost|GSP (?:RPC )?[Tt]imeout|GPU marked for reset"
         r"|GPU_IS_LOST|CUDA error: uncorrectable (?:ECC|NVLink) error"
         r"|CUDA_ERROR_(?:ECC|NVLINK)_UNCORRECTABLE|cudaErrorECCUncorrectable"
         r"|Unable to determine the device handle"),
    signature("pcie.fatal", "cause", "gpu-lost",
         r"\bnvidia (?P<bus>[0-9a-fA-F:.]{7,16}): (?:AER|PCIe Bus Error): .{0,60}"
         r"(?:severity=)?Uncorrect(?:ed|able) \(Fatal\)"),
)  # fmt: skip
# A fault of the program on the card, and one that ended its work there, for whatever reason: an
# assertion in a kernel is 43.
XID_APP = signature("xid.app", "consequence", "illegal-access",
    r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<xid>13|31),")  # fmt: skip
XID_STOPPED = signature("xid.stopped", "consequence", "launch-failure",
    r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<xid>43|45),")  # fmt: skip
OF_PROGRAM = (XID_APP, XID_STOPPED)
CLEANUP = "45"
"""The Xid that follows whatever ended a program, be it a kill from outside."""
HOST_KILLED = signature("host.killed", "cause", "host-oom",
    r"(?:Out of memory|Memory cgroup out of memory): Killed process (?P<pid>\d+) "
    r"\((?P<name>[^)]*)")  # fmt: skip
NOT_STARTED = signature("nvrm.init", "cause", "gpu-absent",
    r"RmInitAdapter failed|NVRM: No NVIDIA (?:graphics adapter|GPU) found")  # fmt: skip
ROWS = (*CARD_LOST, *OF_PROGRAM, HOST_KILLED, NOT_STARTED)

# How a line of the kernel begins, also when an engine's log repeats it.
KERNEL_LINE = re.compile(
    r".{0,80}?(?:NVRM: |nvidia [\da-fA-F:.]{7,16}: |Out of memory: Killed process|Memory cgroup "
    r"out of memory: Killed process)"
)
_XID_PID = re.compile(r"\bpid='?(\d+)")


def find_in_kernel(lines: Sequence[str], pids: Collection[int] | None) -> Finding | None:
    """A GPU fault, or an out-of-memory kill of one of `pids`, in lines of the kernel log.

    None stands for the processes of a machine that is not this one: any may be the engine's.
    """
    symptom: Finding | None = None
    for number, line in enumerate(lines, 1):
        found = first(ROWS, line) if KERNEL_LINE.match(line) else None
        if found is None:
            continue
        row, captures = found
        finding = Finding(row.failure, line.strip()[:MAX_TEXT], "", captures, row.id, number)
        if row is HOST_KILLED and not _among(captures["pid"], pids):
            continue
        if row not in OF_PROGRAM:
            return finding
        if pids is not None and captures["xid"] == CLEANUP:
            continue  # here, what ended it is seen
        # Skip another program's fault on the same card. If no pid is named, the engine's log
        # decides.
        blamed = _XID_PID.search(line)
        if symptom is None and (_among(blamed[1], pids) if blamed else pids is None):
            symptom = finding
    return symptom


def _among(pid: str, pids: Collection[int] | None) -> bool:
    return pids is None or int(pid) in pids
