"""The kernel log, through a file and a pipe that stand in for the device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caovand.adapters.system.kernel_log import (
    KernelLog,
    without_other_cards,
)

XID = "NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=VLLM::EngineCor, MMU Fault"


class Device:
    """A pipe that gives one record a read, as /dev/kmsg does."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        os.mkfifo(path)
        self.path = path
        self._keeper = os.open(path, os.O_RDWR)
        # A pipe knows no end to go to; the device does.
        monkeypatch.setattr(os, "lseek", lambda fd, offset, whence: 0)

    def say(self, record: str) -> None:
        os.write(self._keeper, record.encode())


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(tmp_path / "kmsg", monkeypatch)


def test_a_record_becomes_its_text(device: Device) -> None:
    log = KernelLog(device.path)
    device.say(f"4,1234,5678901,-;{XID}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n")
    assert log.read() == [XID]
    assert log.read() == []
    log.close()


def test_what_is_no_record_is_passed_over(device: Device) -> None:
    log = KernelLog(device.path)
    device.say("nonsense\n")
    assert log.read() == []
    log.close()


def test_lines_from_before_the_opening_are_not_read(tmp_path: Path) -> None:
    old = tmp_path / "kmsg"
    old.write_text(f"4,1,2,-;{XID}\n")
    assert KernelLog(old).read() == []


def test_a_log_that_cannot_be_read_is_empty(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "missing")
    assert log.read() == []


def test_a_fault_of_a_card_that_the_engine_does_not_use_is_not_its() -> None:
    """The kernel and NVML write addresses differently."""
    ours = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', GPU has fallen off the bus."
    other = "NVRM: Xid (PCI:0000:99:00): 79, pid='<unknown>', GPU has fallen off the bus."
    others = (other, "NVRM: GPU 0000:99:00.0: GPU has fallen off the bus.")
    killed = "Out of memory: Killed process 7 (VLLM::Worker)"
    lines = (*others, killed, ours, ours.replace("0000:", "00000000:"))
    assert without_other_cards(lines, {"00000000:01:00.0"}) == list(lines[2:])
    for unknown in ((), ("",), ("00000000:01:00.0", "")):
        assert without_other_cards(lines, unknown) == list(lines)
