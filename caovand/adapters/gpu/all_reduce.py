"""Check all-reduce over several cards with the engine's own Python, and save the result.

The check takes seconds, and a few minutes if something hangs.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Union

from caovand.adapters.confinement.popen import popen_arguments
from caovand.adapters.files import state_file
from caovand.adapters.privileges import engine_user
from caovand.adapters.privileges.program import Captured
from caovand.adapters.system import wall_clock
from caovand.core.facts import all_reduce
from caovand.core.facts.all_reduce import AllReduce, AllReduceResult

FILE = "all-reduce.json"  # in the cache folder
SCRIPT = Path(__file__).with_name("all_reduce_in_env.py")
READY_S, CHECK_S, MORE_S = 90.0, 60.0, 20.0


def read_result(folder: Path, key: str) -> AllReduceResult | None:
    """Return the result of an earlier check for this key."""
    return all_reduce.from_document(state_file.read_or_none(folder / FILE)).get(key)


def save_result(folder: Path, key: str, result: AllReduceResult) -> None:
    """Save the result for later starts; if that fails, the next start checks again."""
    results = all_reduce.from_document(state_file.read_or_none(folder / FILE))
    results.pop(key, None)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        state_file.write(folder / FILE, all_reduce.to_document({**results, key: result}))


Running = Union["subprocess.Popen[str]", Captured]


class AllReduceCheck:
    """One check, in a thread that waits for it; `end` is for other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Running | None = None
        self._ended = False

    def run(self, python: str, task: AllReduce, env: Mapping[str, str]) -> AllReduceResult:
        """Run the check to its end and return the result (blocking)."""
        process = start(python, task, env)
        with self._lock:
            self._process = process
            if self._ended:
                process.kill()
        return finish(process)

    def end(self) -> None:
        """Kill the check, even if it is just being started."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.kill()


def start(python: str, task: AllReduce, env: Mapping[str, str], backend: str = "nccl") -> Running:
    """Start the check on each rank with the environment of the engine (blocking).

    All processes end with this one.
    """
    request = {
        "ranks": task.ranks,
        "backend": backend,
        "custom": task.custom,
        "ready_s": READY_S,
        "check_s": CHECK_S,
    }
    words = [python, "-c", SCRIPT.read_text("utf-8"), json.dumps(request)]
    env = {**env, "OMP_NUM_THREADS": "1"}
    user = engine_user.current()
    if user is not None:
        with popen_arguments(words, env, None) as launch:
            return user.capture(launch["args"], launch["env"], launch["stdin"].fileno())
    return subprocess.Popen(
        words,
        env=env,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def finish(process: Running) -> AllReduceResult:
    """Wait for the check to end and return its result (blocking)."""
    with process:
        try:
            output, errors = process.communicate(timeout=READY_S + CHECK_S + MORE_S)
        except subprocess.TimeoutExpired:
            return AllReduceResult("unclear", wall_clock.now(), text="the check did not finish")
        finally:
            process.kill()
    last = (output.strip().splitlines() or [""])[-1]
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(last)
        at = {"at": wall_clock.now()}
        result = all_reduce.read({**answer, **at} if isinstance(answer, dict) else None)
        if result is not None:
            return result
    words = (errors.strip().splitlines() or ["it printed nothing"])[-1]
    return AllReduceResult("unclear", wall_clock.now(), text=words[: all_reduce.MAX_TEXT])
