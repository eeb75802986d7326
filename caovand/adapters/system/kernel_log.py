"""The kernel's log.

Reading `/dev/kmsg` needs root, CAP_SYSLOG, or `kernel.dmesg_restrict=0`; without them there are no
lines. Only lines logged after opening are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

KMSG = Path("/dev/kmsg")
RECORD = 8192  # bytes; a read returns one record and fails if the buffer is shorter
MAX_RECORDS = 1000  # a read, so that a flood cannot block the daemon
# `Xid (PCI:0000:01:00): 79` and `GPU 0000:01:00.0: GPU has fallen off the bus`; NVML's addresses
# have more zeros.
_CARD = re.compile(
    r"(?:NVRM: .{0,20}?(?:PCI:|GPU )|nvidia )([\da-fA-F]{4,8}):([\da-fA-F]{2}):([\da-fA-F]{2})"
)
_ADDRESS = re.compile(r"([\da-fA-F]{4,8}):([\da-fA-F]{2}):([\da-fA-F]{2})")


def without_other_cards(lines: Iterable[str], buses: Collection[str]) -> list[str]:
    """The lines, except those that name cards at other PCI addresses than these.

    If an address is unknown, every card's lines are kept: a line too many restarts an engine, a
    line too few leaves a dead one running.
    """
    matches = [_ADDRESS.match(bus) for bus in buses]
    ours = {_pci_bus(match) for match in matches if match}
    if not matches or None in matches:
        return list(lines)
    named = ((line, _CARD.search(line)) for line in lines)
    return [line for line, match in named if match is None or _pci_bus(match) in ours]


def _pci_bus(match: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in match.groups())


class KernelLog:
    """The kernel log, from the moment of opening."""

    def __init__(self, path: Path = KMSG) -> None:
        self._fd: int | None = None
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self.close()

    def read(self) -> list[str]:
        """The lines since the last read; never waits."""
        lines: list[str] = []
        for _ in range(MAX_RECORDS):
            if self._fd is None:
                break
            try:
                record = os.read(self._fd, RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten unread: continue with the oldest
            except OSError:
                self.close()
                break
            if not record:
                break
            lines += _parse_record(record)
        return lines

    def close(self) -> None:
        """Stop reading."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _parse_record(record: bytes) -> list[str]:
    """The text of a record like `6,1234,5678,-;text`, without continuation lines, which begin with
    a blank."""
    first = record.decode("utf-8", errors="replace").split("\n", 1)[0]
    head, semicolon, text = first.partition(";")
    return [text] if semicolon and head[:1].isdigit() else []
