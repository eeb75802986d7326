"""What an engine's processes may reach: passed to `launch`, which confines itself to it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from caovand.adapters.child import launch

PROGRAM = str(Path(launch.__file__).resolve())


@dataclass(frozen=True)
class Confinement:
    """The engine reads all that its user may except what is `hidden`, and what is `readable` in it.

    It writes below `writable` folders alone, which are made where they are missing.
    """

    hidden: tuple[str, ...]
    readable: tuple[str, ...]
    writable: tuple[str, ...]


def document(
    argv: Sequence[str],
    env: Mapping[str, str],
    cgroup: Path | None,
    unlimited_stack: bool,
    confinement: Confinement | None,
) -> int:
    """An open file with what `launch` reads; in memory, so neither side waits for the other."""
    launched = {
        "argv": list(argv),
        "env": dict(env),
        "cgroup": str(cgroup / "cgroup.procs") if cgroup else "",
        "unlimited_stack": unlimited_stack,
        "confined": asdict(confinement) if confinement else None,
    }
    descriptor = os.memfd_create("launch")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(json.dumps(launched).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
