"""The helper that calls functions as the engine's user: the cost of a stopped one, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from caovand.adapters.privileges import engine_user
from caovand.adapters.privileges import helper as helper_module
from caovand.adapters.privileges.helper import Helper
from caovand.adapters.privileges.program import ProgramOfUser
from caovand.adapters.system import processes
from tests.patience import LIMIT_S, soon, until

READ_OUTPUTS = f"{processes.__name__}:read_outputs"
STAT_OF = f"{processes.__name__}:stat_of"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The helper's programs, which run as our own user here."""
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for program in found:
        program.kill()
        program.wait()


@pytest.fixture
def helper(started: list[subprocess.Popen[bytes]]) -> Iterator[Helper]:
    def start(words: Sequence[str], env: Mapping[str, str], stdio: Sequence[int]) -> ProgramOfUser:
        program = subprocess.Popen(words, stdin=stdio[0], env=dict(env))
        started.append(program)
        return cast("ProgramOfUser", program)

    one = Helper("nobody", start)
    yield one
    one.close()


def outputs(helper: Helper) -> Any:
    return helper.call(READ_OUTPUTS, [os.getpid()], LIMIT_S)


def test_a_stopped_one_keeps_a_loop_for_a_moment_once(
    helper: Helper, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = outputs(helper)
    assert ours == processes.read_outputs(os.getpid())

    async def works() -> bool:
        with contextlib.suppress(TimeoutError):
            return bool(outputs(helper) == ours)
        return False

    def stop() -> None:
        started[0].send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, started[0].pid, os.WSTOPPED)

    async def test() -> None:
        await soon(works)
        stop()
        with monkeypatch.context() as patch:
            patch.setattr(helper_module, "LOOP_S", 0.05)
            patch.setattr(helper_module, "ANSWER_S", LIMIT_S)
            for why in ("it took too long", *["it has not answered yet"] * 50):
                with pytest.raises(TimeoutError, match=why):
                    outputs(helper)
            started[0].send_signal(signal.SIGCONT)
            patch.undo()
            patch.setattr(helper_module, "ANSWER_S", LIMIT_S)
            await soon(works)
            assert len(started) == 1, "one that answers late is kept"
            stop()
            patch.setattr(helper_module, "LOOP_S", 0.05)
            with pytest.raises(TimeoutError):
                outputs(helper)
            patch.setattr(helper_module, "ANSWER_S", 0.0)
            with contextlib.suppress(TimeoutError):
                outputs(helper)
        assert len(started) == 2
        await soon(lambda: started[0].poll() == -signal.SIGKILL)
        await soon(works)

    asyncio.run(test())


def test_a_loop_does_not_wait_for_who_waits_for_a_stopped_one(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper_module, "LOOP_S", 0.01)

    async def test() -> None:
        with helper._lock, pytest.raises(TimeoutError, match="it is busy"):
            outputs(helper)

    asyncio.run(test())


def test_a_call_that_hangs_ends_with_its_helper(
    helper: Helper, started: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "stat")

    def ask() -> None:
        with contextlib.suppress(OSError):
            helper.call(STAT_OF, [f"..{tmp_path}"], LIMIT_S)

    hangs = threading.Thread(target=ask)
    hangs.start()

    def opened() -> int | None:
        with contextlib.suppress(OSError):
            return os.open(tmp_path / "stat", os.O_WRONLY | os.O_NONBLOCK)
        return None

    end = until(opened, "a call that reads", every_s=0.005)
    assert end is not None
    started[0].kill()
    poll = select.poll()
    poll.register(end, 0)
    assert poll.poll(LIMIT_S * 1000), "the call reads on"
    os.close(end)
    hangs.join()


def test_orphans_are_found_in_a_thread_where_another_user_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphans = importlib.import_module("caovand.adapters.child.orphans")
    found: list[bool] = []

    def look(*_: object) -> tuple[processes.Process, ...]:
        found.append(helper_module._is_on_loop())
        return ()

    monkeypatch.setattr(orphans, "orphans", look)
    monkeypatch.setattr(engine_user, "_own", engine_user._Own(cast("Any", object())))
    assert asyncio.run(orphans.end_orphans(tmp_path / "none")) == ((), ())
    assert found
    assert not any(found)
