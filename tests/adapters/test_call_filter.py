"""System calls that the filter refuses, checked by interpreting its code as the kernel does."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Collection, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.adapters.confinement import call_filter

OFFSETS = {
    call_filter.NR_OFFSET: "nr", call_filter.ARCH_OFFSET: "arch",
    call_filter.ARG0_OFFSET: "first", call_filter.ARG1_OFFSET: "second",
}  # fmt: skip
machines = pytest.mark.parametrize("machine", call_filter.MACHINES)


@pytest.fixture(scope="module")
def other() -> Iterator[int]:
    """A keeper in a process group of its own."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


def verdict(code: bytes, **call: int) -> int:
    """What the filter does with a system call."""
    program = [struct.unpack("=HBBI", code[n : n + 8]) for n in range(0, len(code), 8)]
    at, register = 0, 0
    while True:
        kind, yes, no, value = program[at]
        at += 1
        if kind == call_filter.BPF_LOAD:
            register = call.get(OFFSETS[value], 0) & call_filter.UINT32_MAX
        elif kind == call_filter.BPF_JEQ:
            at += yes if register == value else no
        elif kind == call_filter.BPF_JGE:
            at += yes if register >= value else no
        else:
            assert value in (call_filter.ALLOW, call_filter.REFUSE)
            return int(value)


def refused(
    machine: str,
    name: str,
    keepers: Collection[int] = (),
    *,
    landlock: bool = True,
    alone: bool = False,
    **values: int,
) -> bool:
    """Whether a call is refused, where Landlock knows of truncation and signals or not."""
    code = call_filter.program(machine, keepers, truncation=landlock, signals=landlock, alone=alone)
    call = {"arch": call_filter.AUDIT_ARCH[machine], "nr": call_filter.number(name, machine)}
    return verdict(code, **call, **values) == call_filter.REFUSE


@machines
@given(number=st.integers(0, 2**32 - 1), first=st.integers(0, 2**32 - 1))
def test_the_filter_refuses_what_is_denied_and_nothing_else(
    machine: str, number: int, first: int
) -> None:
    code, arch = call_filter.program(machine, ()), call_filter.AUDIT_ARCH[machine]
    denied = {call_filter.number(name, machine) for name in call_filter.DENIED}
    argued = {*call_filter.LIMITING, *call_filter.PRIORITIES, *call_filter.OBSERVING}
    argued |= {*call_filter.SCHEDULING}
    for one in {number, *denied} - {call_filter.number(name, machine) for name in argued}:
        refused = one in denied or one >= call_filter.X32
        expected = call_filter.REFUSE if refused else call_filter.ALLOW
        assert verdict(code, nr=one, arch=arch, first=first) == expected
        assert verdict(code, nr=one, arch=arch + 1, first=first) == call_filter.REFUSE


@machines
def test_where_landlock_knows_no_signals_the_filter_keeps_them_from_the_keepers(
    machine: str, other: int
) -> None:
    """The daemon, in whose group the page and the gateway are, and the spawner."""
    keepers = (os.getpid(), other)
    for name in call_filter.SIGNALS:
        for keeper in keepers:
            for pid in (keeper, -keeper, -os.getpgid(keeper), -1, 0):
                assert refused(machine, name, keepers, landlock=False, first=pid), (name, pid)
                assert not refused(machine, name, keepers, first=pid)
        assert not refused(machine, name, keepers, landlock=False, first=other + 1)
        assert not refused(machine, name, {other}, landlock=False, first=0), "another group"
    for name, commands in {"fcntl": (8, 15), "ioctl": (0x8901, 0x8902)}.items():
        for command in commands:
            assert refused(machine, name, landlock=False, second=command)
            assert not refused(machine, name, landlock=False, second=command + 20)
            assert not refused(machine, name, second=command)
    for name in ("tkill", "pidfd_send_signal", "truncate"):
        assert refused(machine, name, landlock=False)
        assert not refused(machine, name)


@machines
@pytest.mark.parametrize("landlock", [True, False])
def test_no_other_process_gets_priorities_or_limits(machine: str, landlock: bool) -> None:
    own, others = os.getpid(), (1, os.getppid(), -1)
    for name in call_filter.LIMITING:
        for pid in (0, own):
            assert not refused(machine, name, landlock=landlock, first=pid)
        for pid in others:
            assert refused(machine, name, landlock=landlock, first=pid), name
    for name, kind in {"setpriority": os.PRIO_PROCESS, "ioprio_set": 1}.items():
        for pid in (0, own):
            assert not refused(machine, name, landlock=landlock, first=kind, second=pid)
            for others_kind in {0, 1, 2, 3} - {kind}:  # of a group, of a user
                assert refused(machine, name, landlock=landlock, first=others_kind, second=pid)
        for pid in others:
            assert refused(machine, name, landlock=landlock, first=kind, second=pid), name


@machines
def test_the_keepers_are_neither_scheduled_nor_observed(machine: str, other: int) -> None:
    """All others may be: OpenMP and ZeroMQ name threads, and would abort."""
    keepers = {os.getppid(), other}
    for name in ("sched_setaffinity", "sched_setscheduler", "sched_setparam"):
        for pid in (0, os.getpid(), other + 1):
            assert not refused(machine, name, keepers, first=pid), name
            assert refused(machine, name, keepers, alone=True, first=other + 1)
        for pid in keepers:
            for alone in (True, False):
                assert refused(machine, name, keepers, alone=alone, first=pid), name
    for pid in keepers:
        for name in ("migrate_pages", "move_pages", "kcmp"):
            assert refused(machine, name, keepers, first=pid), name
        for name in ("perf_event_open", "kcmp"):
            assert refused(machine, name, keepers, second=pid), name
    assert refused(machine, "perf_event_open", second=-1), "all processes"
    for name in ("migrate_pages", "move_pages", "kcmp", "perf_event_open"):
        assert not refused(machine, name, keepers, first=os.getpid(), second=other + 1), name
    for name in ("process_madvise", "process_mrelease"):
        assert refused(machine, name), "a descriptor does not say whose it is"


@machines
def test_memory_is_bound_to_nodes_freely(machine: str) -> None:
    for name, numbers in {"set_mempolicy": (238, 237), "mbind": (237, 235)}.items():
        code = call_filter.program(machine, {1}, truncation=False, signals=False, alone=True)
        call = numbers[call_filter.MACHINES.index(machine)]
        found = verdict(code, nr=call, arch=call_filter.AUDIT_ARCH[machine], first=1)
        assert found == call_filter.ALLOW, name


@machines
@pytest.mark.parametrize("landlock", [True, False])
def test_one_that_is_alone_signals_itself_and_nobody_else(
    machine: str, landlock: bool, other: int
) -> None:
    """Any thread of the daemon's counts as the daemon, by a pid that nobody knows beforehand."""
    for name in call_filter.SIGNALS:
        for pid in (other, other + 1, -other, -1, 0, os.getppid(), -os.getpid()):
            assert refused(machine, name, landlock=landlock, alone=True, first=pid), (name, pid)
        assert not refused(machine, name, landlock=landlock, alone=True, first=os.getpid())
    for name in call_filter.UNNAMED:
        assert refused(machine, name, landlock=landlock, alone=True)
    assert refused(machine, "fcntl", landlock=landlock, alone=True, second=8)
    assert not refused(machine, "fcntl", landlock=landlock, alone=True, second=1)


def test_a_keeper_that_has_ended_keeps_nothing_from_starting() -> None:
    assert call_filter.program("x86_64", {1 << 22}, signals=False)


def test_all_calls_have_numbers_of_their_own() -> None:
    for numbers in zip(*call_filter.NUMBERS.values(), strict=True):
        assert len({*numbers}) == len(call_filter.NUMBERS)
