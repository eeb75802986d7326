"""The seccomp filter of a confined program, as BPF code; see `launch`."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

SET_MODE_FILTER, FILTER_FLAG_SPEC_ALLOW = 1, 4
BPF_LOAD, BPF_JEQ, BPF_JGE, BPF_RET = 0x20, 0x15, 0x35, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
NR_OFFSET = 0
ARCH_OFFSET, ARG0_OFFSET, ARG1_OFFSET = 4, 16, 24
"""Offsets in struct seccomp_data: of the call's number, its architecture and its arguments."""
X32 = 0x40000000
UINT32_MAX = 0xFFFFFFFF
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES = tuple(AUDIT_ARCH)
NUMBERS: Mapping[str, tuple[int, int]] = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "delete_module": (176, 106),
    "fcntl": (72, 25), "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fsopen": (430, 430), "fspick": (433, 433), "init_module": (175, 105), "ioctl": (16, 29),
    "ioprio_set": (251, 30), "kcmp": (312, 272), "kexec_file_load": (320, 294),
    "kexec_load": (246, 104), "keyctl": (250, 219), "kill": (62, 129),
    "migrate_pages": (256, 238), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "move_pages": (279, 239),
    "open_by_handle_at": (304, 265), "perf_event_open": (298, 241), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "setpriority": (141, 140),
    "open_tree": (428, 428), "open_tree_attr": (467, 467),
    "pidfd_send_signal": (424, 424), "pivot_root": (155, 41), "prlimit64": (302, 261),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117),
    "reboot": (169, 142), "request_key": (249, 218), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "seccomp": (317, 277), "swapoff": (168, 225),
    "swapon": (167, 224), "tgkill": (234, 131), "tkill": (200, 130), "truncate": (76, 45),
    "umount2": (166, 39),
}  # fmt: skip
"""System call numbers on each of MACHINES."""
DENIED = (
    "ptrace", "process_vm_readv", "process_vm_writev", "bpf", "kexec_load", "kexec_file_load",
    "init_module", "finit_module", "delete_module", "mount", "umount2", "pivot_root", "open_tree",
    "open_tree_attr", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
    "keyctl", "add_key", "request_key", "open_by_handle_at", "swapon", "swapoff", "reboot", "acct",
    "process_madvise", "process_mrelease",
)  # fmt: skip
SIGNALS = ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
"""Calls whose first argument names the process."""
UNNAMED = ("tkill", "pidfd_send_signal")
"""Calls whose arguments do not name the process."""
OWNERS = {"fcntl": (8, 15), "ioctl": (0x8901, 0x8902)}
"""F_SETOWN and the like, which set who gets a signal when a descriptor is ready."""
SCHEDULING = ("sched_setaffinity", "sched_setparam", "sched_setscheduler")
"""Calls whose first argument names a thread. OpenMP and ZeroMQ name each of theirs, not only 0."""
OBSERVING: Mapping[str, Sequence[int]] = {
    "migrate_pages": (ARG0_OFFSET,), "move_pages": (ARG0_OFFSET,),
    "perf_event_open": (ARG1_OFFSET,), "kcmp": (ARG0_OFFSET, ARG1_OFFSET),
}  # fmt: skip
"""Arguments of these calls that name processes; a process allowed to do this to others may trace
them."""
LIMITING = ("prlimit64", "sched_setattr")
"""Calls whose first argument names the process."""
PRIORITIES = {"setpriority": 0, "ioprio_set": 1}
"""Calls whose second argument names a process if the first is PRIO_PROCESS or
IOPRIO_WHO_PROCESS."""
ALL = -1
"""As a pid: every process that the caller may signal or observe."""

Instruction = tuple[int, int, int, int]
Values = Mapping[int, Sequence[int]]
"""Values of a call's arguments, by offset."""


def number(name: str, machine: str) -> int:
    """The number of a system call."""
    return NUMBERS[name][MACHINES.index(machine)]


def program(
    machine: str,
    keepers: Collection[int],
    *,
    truncation: bool = True,
    signals: bool = True,
    alone: bool = False,
) -> bytes:
    """The filter program; refused calls fail with EPERM.

    It refuses the calls in DENIED; setting the priority or limits of another process, which needs
    only the same user; and scheduling or observing the processes `keepers`. If Landlock does not
    restrict `truncation` and `signals`, it also refuses truncating by name, and signals to the
    keepers and their groups. A program that is `alone` may signal and schedule no other process at
    all: a pid may name any thread, and threads come and go.
    """
    own, denied = os.getpid(), [*DENIED]
    itself, kept = (0, own), sorted({*keepers, ALL})
    refused: dict[str, Values] = {name: dict.fromkeys(at, kept) for name, at in OBSERVING.items()}
    allowed: dict[str, Values] = {name: {ARG0_OFFSET: itself} for name in LIMITING}
    for name, kind in PRIORITIES.items():
        allowed[name] = {ARG0_OFFSET: (kind,), ARG1_OFFSET: itself}
    if not truncation:
        denied.append("truncate")
    if alone or not signals:
        denied += UNNAMED
        refused |= {name: {ARG1_OFFSET: values} for name, values in OWNERS.items()}
    if alone:
        allowed |= {name: {ARG0_OFFSET: (own,)} for name in SIGNALS}
        allowed |= {name: {ARG0_OFFSET: itself} for name in SCHEDULING}
    else:
        refused |= {name: {ARG0_OFFSET: kept} for name in SCHEDULING}
        pids = sorted({*kept, *_group_arguments(keepers)})
        refused |= {name: {ARG0_OFFSET: pids} for name in SIGNALS if not signals}
    code = [
        (BPF_LOAD, 0, 0, ARCH_OFFSET),
        (BPF_JEQ, 1, 0, AUDIT_ARCH[machine]),
        (BPF_RET, 0, 0, REFUSE),
        (BPF_LOAD, 0, 0, NR_OFFSET),
        *_unless(BPF_JGE, X32),
    ]
    for name in denied:
        code += _unless(BPF_JEQ, number(name, machine))
    for test, values_of in ((_refuse_values, refused), (_refuse_other_values, allowed)):
        for name, arguments in values_of.items():
            tests = [step for offset, values in arguments.items() for step in test(offset, values)]
            code += [(BPF_JEQ, 0, len(tests) + 1, number(name, machine)), *tests]
            code.append((BPF_RET, 0, 0, ALLOW))
    code.append((BPF_RET, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _group_arguments(keepers: Collection[int]) -> Iterator[int]:
    """Signal arguments that name the keepers' process groups, and 0 if ours is one of them."""
    for pid in keepers:
        yield -pid
        try:
            group = os.getpgid(pid)
        except ProcessLookupError:  # it has ended
            continue
        yield -group
        if group == os.getpgrp():
            yield 0


def _refuse_values(offset: int, values: Collection[int]) -> list[Instruction]:
    """Refuse a call whose argument is one of these values."""
    tests = [
        instruction for value in values for instruction in _unless(BPF_JEQ, value & UINT32_MAX)
    ]
    return [(BPF_LOAD, 0, 0, offset), *tests]


def _refuse_other_values(offset: int, values: Sequence[int]) -> list[Instruction]:
    """Refuse a call whose argument is none of these values."""
    tests = [
        (BPF_JEQ, len(values) - place, 0, value & UINT32_MAX) for place, value in enumerate(values)
    ]
    return [(BPF_LOAD, 0, 0, offset), *tests, (BPF_RET, 0, 0, REFUSE)]


def _unless(compare: int, value: int) -> list[Instruction]:
    return [(compare, 0, 1, value), (BPF_RET, 0, 0, REFUSE)]


def install(libc: Any, code: bytes) -> None:
    """Install the filter in this process; print the reason if that is impossible.

    SECCOMP_FILTER_FLAG_SPEC_ALLOW keeps the CPU's speculation, which some kernels would turn
    off for a filtered process; the kernels of some containers do not know the flag.
    """
    instructions = ctypes.create_string_buffer(code)
    pointer = struct.pack("@HP", len(code) // 8, ctypes.addressof(instructions))
    call = number("seccomp", platform.machine())
    if all(
        libc.syscall(call, SET_MODE_FILTER, flags, pointer) for flags in (FILTER_FLAG_SPEC_ALLOW, 0)
    ):
        reason = os.strerror(ctypes.get_errno())
        print(f"caovan: cannot filter the engine's system calls: {reason}", file=sys.stderr)
