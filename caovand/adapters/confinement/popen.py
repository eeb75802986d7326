"""The files that a program may reach, passed to `launch`, which confines itself to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from caovand.adapters.privileges import engine_user
from caovand.adapters.privileges.helper import in_memory

PROGRAM = str(Path(__file__).resolve().with_name("launch.py"))


@dataclass(frozen=True)
class Confinement:
    """The program may read what its user may, except `hidden` paths, but including `readable` ones
    inside them.

    It may write only below `writable` folders, which are created if missing. One that is `alone`
    may signal no other process.
    """

    hidden: tuple[str, ...]
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    alone: bool = False


@contextlib.contextmanager
def popen_arguments(
    argv: Sequence[str],
    env: Mapping[str, str],
    confinement: Confinement | None,
    *,
    cgroup: Path | None = None,
    unlimited_stack: bool = False,
) -> Iterator[dict[str, Any]]:
    """Arguments for `subprocess` to start `launch` with a command and its environment.

    The command joins `cgroup` before anything else, and gets SIGTERM when we die; that signal is
    bound to the forking thread.
    """
    launch = {
        "argv": list(argv),
        "env": dict(env),
        "cgroup": str(cgroup / "cgroup.procs") if cgroup else "",
        "unlimited_stack": unlimited_stack,
        "ends_with": int(signal.SIGTERM),
        "confined": asdict(confinement) if confinement else None,
        "keepers": [user.spawner] if (user := engine_user.current()) else [],
    }
    with open(in_memory(json.dumps(launch)), "rb") as launched:
        words = [sys.executable, "-I", "-S", PROGRAM]
        # The engine's variables might point our own Python to other libraries.
        own = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        yield {"args": words, "env": own, "stdin": launched}
