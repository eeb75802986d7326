"""The kernel's own words: its log, and the counters of its out-of-memory killer.

Reading `/dev/kmsg` needs root, CAP_SYSLOG, or `kernel.dmesg_restrict=0`; where that is missing
there are no lines, and `available` says so. Only lines from after the opening are read.
"""

from __future__ import annotations

import os
from pathlib import Path

KMSG = Path("/dev/kmsg")
RECORD = 8192  # bytes; a read gives one record and fails if the buffer is shorter
MOST_RECORDS = 1000  # in one look, so that a flood cannot hold up the daemon


class KernelLog:
    """The kernel log from now on."""

    def __init__(self, path: Path = KMSG) -> None:
        self._fd: int | None = None
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self.close()

    @property
    def available(self) -> bool:
        """Whether the kernel log can be read."""
        return self._fd is not None

    def read(self) -> list[str]:
        """The lines since the last look; never waits."""
        lines: list[str] = []
        for _ in range(MOST_RECORDS):
            if self._fd is None:
                break
            try:
                record = os.read(self._fd, RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before we read them; go on with the oldest
            except OSError:
                self.close()
                break
            if not record:
                break
            lines += _messages(record)
        return lines

    def close(self) -> None:
        """Stop reading."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _messages(record: bytes) -> list[str]:
    """`6,1234,5678,-;text` and continuation lines, which begin with a blank, as plain texts."""
    first = record.decode("utf-8", errors="replace").split("\n", 1)[0]
    head, semicolon, text = first.partition(";")
    return [text] if semicolon and head[:1].isdigit() else []


def memory_cgroup(membership: str, root: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """The group whose memory limit holds for a process with this `/proc/PID/cgroup`.

    None where it is in no group of its own: kills there would be those of the whole machine.
    """
    unified = None
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if path != "/" and "memory" in controllers.split(","):
            return root / "memory" / path[1:]
        if path != "/" and not controllers:
            unified = root / path[1:]
    return unified


def oom_kills(cgroup: Path) -> int | None:
    """How many processes of a control group the kernel killed for memory; None if it says not.

    Version 2 counts in `memory.events`, version 1 in `memory.oom_control`.
    """
    for name in ("memory.events", "memory.oom_control"):
        try:
            text = (cgroup / name).read_text()
        except OSError:
            continue
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.strip().isdigit():
                return int(value)
    return None
