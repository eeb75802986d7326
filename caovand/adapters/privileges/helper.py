"""The helper that calls caovan's functions as the engine's user: `calls`, kept running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from caovand import HOME
from caovand.adapters.privileges.program import ProgramOfUser

PROGRAM = Path(__file__).with_name("calls.py")
ANSWER_S = 10.0
MARGIN_S = 2.0
"""A call takes less time; a helper that has not answered by then was stopped."""
END_S = 5.0
LOOP_S = 0.5
"""The longest time that a call may block an event loop, which must not wait for a stopped
program.
"""
MAX_ANSWER = 64 << 20
READ_BYTES = 1 << 20


class Helper:
    """Calls functions as the user `name`, through a program that `start` starts with three
    descriptors.

    Whatever that user's other programs do to it, a call ends in time, and a new program takes over.
    """

    def __init__(self, name: str, start: Callable[..., ProgramOfUser]) -> None:
        self._name, self._start = name, start
        self._lock = threading.Lock()
        self._running: tuple[socket.socket, ProgramOfUser] | None = None
        self._owed: tuple[Any, float] | None = None
        """The answer that an event loop stopped waiting for, and since when it is due."""

    def call(self, name: str, args: Sequence[Any], limit_s: float) -> Any:
        """Call a function by its name; raises OSError, also if it takes too long.

        On an event loop the limit is LOOP_S.
        """
        if _is_on_loop():
            data = self._call_on_loop(json.dumps([name, args, LOOP_S]))
        else:
            request = json.dumps([name, args, limit_s])
            try:
                data = self._call_helper(request, limit_s + MARGIN_S)
            except TimeoutError:
                data = self._call_helper(request, ANSWER_S - MARGIN_S)
        try:
            answer: dict[str, Any] = dict(json.loads(data))
        except (ValueError, TypeError, RecursionError):
            answer = {"error": "it exited without an answer"}
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        if "error" in answer:
            raise OSError(None, f"cannot call {name} as {self._name}: {answer['error']}")
        return answer.get("result")

    def close(self) -> None:
        """End the helper program."""
        with self._lock:
            self._end(END_S)

    def _call_helper(self, text: str, limit_s: float) -> bytes:
        """The answer to one request; a TimeoutError kills the program that did not answer."""
        with self._lock:
            answers, asked = self._send_request(text, ANSWER_S)
        with answers:
            try:
                return _read(answers, time.monotonic() + limit_s)
            except TimeoutError:
                with self._lock:
                    if self._running is asked:  # before Linux 6.12, an engine may have stopped it
                        self._end(END_S)
                raise

    def _call_on_loop(self, text: str) -> bytes:
        """The answer to one request within LOOP_S; the program may answer up to ANSWER_S later.

        It may be starting. Until it has answered, further calls fail at once.
        """
        deadline = time.monotonic() + LOOP_S
        if not self._lock.acquire(timeout=LOOP_S):
            raise TimeoutError("it is busy")
        try:
            if self._owed is not None:
                answers, since = self._owed
                if _is_readable(answers, 0.0):
                    self._settle()
                elif time.monotonic() < since + ANSWER_S:
                    raise TimeoutError("it has not answered yet")
                else:
                    self._end(LOOP_S)
            answers, _ = self._send_request(text, LOOP_S)
        finally:
            self._lock.release()
        try:
            data = _read(answers, deadline)
        except TimeoutError:
            self._owed = answers, time.monotonic()
            raise
        answers.close()
        return data

    def _send_request(
        self, text: str, limit_s: float
    ) -> tuple[Any, tuple[socket.socket, ProgramOfUser]]:
        """Send a request; return the socket for its answer, and the program that will answer."""
        read_end, write_end = os.pipe()
        answers = open(read_end, "rb", buffering=0)  # noqa: SIM115
        try:
            with open(in_memory(text), "rb") as request:
                return answers, self._send([request.fileno(), write_end], limit_s)
        except BaseException:
            answers.close()
            raise
        finally:
            os.close(write_end)

    def _send(
        self, descriptors: Sequence[int], limit_s: float
    ) -> tuple[socket.socket, ProgramOfUser]:
        """Send a request to the program, starting one if there is none; return it."""
        if self._running is not None:
            with contextlib.suppress(OSError):
                self._running[0].settimeout(limit_s)  # the buffer of a stopped one fills up
                socket.send_fds(self._running[0], [b"call"], descriptors)
                return self._running
            self._end(min(END_S, limit_s))  # before Linux 6.12, an engine may have killed it
        self._running = self._start_program()
        socket.send_fds(self._running[0], [b"call"], descriptors)
        return self._running

    def _start_program(self) -> tuple[socket.socket, ProgramOfUser]:
        """Start the program; return the socket that it listens to."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        with theirs, open(os.devnull, "r+b") as nothing:
            words = [sys.executable, "-I", "-S", str(PROGRAM), HOME]
            return ours, self._start(words, env, [theirs.fileno(), *[nothing.fileno()] * 2])

    def _end(self, limit_s: float) -> None:
        self._settle()
        if self._running is not None:
            link, program = self._running
            self._running = None
            link.close()
            with contextlib.suppress(OSError, TimeoutExpired):
                program.kill()
                program.wait(limit_s)

    def _settle(self) -> None:
        if self._owed is not None:
            self._owed[0].close()
            self._owed = None


def _is_on_loop() -> bool:
    """Whether this thread runs an event loop that waits for us."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_readable(answers: Any, limit_s: float) -> bool:
    """Whether there is data, or the end of it, within this time."""
    poll = select.poll()
    poll.register(answers, select.POLLIN)
    return bool(poll.poll(max(limit_s, 0.0) * 1000))


def _read(answers: Any, deadline: float) -> bytes:
    """Read until the other end is closed; raises TimeoutError if that takes longer."""
    parts: list[bytes] = []
    while sum(map(len, parts)) <= MAX_ANSWER:
        if not _is_readable(answers, deadline - time.monotonic()):
            break
        part = answers.read(READ_BYTES)
        if not part:
            return b"".join(parts)
        parts.append(part)
    raise TimeoutError("it took too long")


def in_memory(text: str) -> int:
    """An open file with this text, so that neither side waits for the other."""
    descriptor = os.memfd_create("text")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
