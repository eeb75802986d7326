"""Count the processes that the kernel killed for memory, by control group."""

from __future__ import annotations

from pathlib import Path

from caovand.adapters.files.safe_files import read_or_empty

ROOT = Path("/sys/fs/cgroup")


class OomKills:
    """The kills of one engine since this was created, by its own group's count if it has one.

    A group has a count if it has the memory controller. The unit's group always has, and its limit
    applies to the daemon and all its engines together: there another engine's kill counts as well.
    """

    def __init__(self, cgroup: Path | None, root: Path = ROOT) -> None:
        unit = _own_group(root)
        groups = (unit / cgroup.name if unit and cgroup else None, unit)
        counts = ((group, oom_kills(group)) for group in groups if group)
        self._counted = next(((group, n) for group, n in counts if n is not None), None)

    def any(self) -> bool:
        """Whether any process was killed."""
        if self._counted is None:
            return False
        group, before = self._counted
        return (oom_kills(group) or 0) > before


def _own_group(root: Path) -> Path | None:
    return memory_cgroup(read_or_empty(Path("/proc/self/cgroup"), "surrogateescape"), root)


def memory_cgroup(membership: str, root: Path = ROOT) -> Path | None:
    """Find the cgroup whose memory limit applies, from a process's `/proc/PID/cgroup`.

    None for the root cgroup: its kills are those of the whole machine.
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
    """Count the processes in a cgroup that the OOM killer has killed; None if unknown.

    Version 2 counts in `memory.events`, version 1 in `memory.oom_control`.
    """
    for name in ("memory.events", "memory.oom_control"):
        try:
            text = (cgroup / name).read_text(errors="replace")
        except (OSError, MemoryError):
            continue
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.strip().isdigit():
                return int(value)
    return None
