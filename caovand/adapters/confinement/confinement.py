"""What a program of an engine's may reach: passed to `launch`, which confines itself to it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from caovand.adapters.confinement import launch

PROGRAM = str(Path(launch.__file__).resolve())


@dataclass(frozen=True)
class Confinement:
    """The engine reads all that its user may except what is `hidden`, and what is `readable` in it.

    It writes below `writable` folders alone, which are made where they are missing.
    """

    hidden: tuple[str, ...]
    readable: tuple[str, ...]
    writable: tuple[str, ...]


@contextlib.contextmanager
def launching(
    argv: Sequence[str],
    env: Mapping[str, str],
    confinement: Confinement | None,
    *,
    cgroup: Path | None = None,
    unlimited_stack: bool = False,
) -> Iterator[dict[str, Any]]:
    """What `subprocess` needs to start `launch` with a command of this environment."""
    with open(document(argv, env, confinement, cgroup, unlimited_stack), "rb") as launched:
        words = [sys.executable, "-I", "-S", PROGRAM]
        # The engine's variables might lead our own Python to other libraries.
        own = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        yield {"args": words, "env": own, "stdin": launched}


def document(
    argv: Sequence[str],
    env: Mapping[str, str],
    confinement: Confinement | None,
    cgroup: Path | None = None,
    unlimited_stack: bool = False,
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
