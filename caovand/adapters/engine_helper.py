"""The helper that calls caovan's functions as the engine's user: `engine_calls`, kept running."""

from __future__ import annotations

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
from caovand.adapters.engine_program import Program

PROGRAM = Path(__file__).with_name("engine_calls.py")
ANSWER_S = 10.0
MARGIN_S = 2.0
"""A call has ended by then; what has not answered was stopped."""
END_S = 5.0
MAX_ANSWER = 64 << 20
READ_BYTES = 1 << 20


class Helper:
    """Calls functions as the user `name`, by a program that `start` starts with three descriptors.

    Whatever that user's other programs do to it, a call ends in time, and a new one takes over.
    """

    def __init__(self, name: str, start: Callable[..., Program]) -> None:
        self._name, self._start = name, start
        self._lock = threading.Lock()
        self._running: tuple[socket.socket, Program] | None = None

    def call(self, name: str, args: Sequence[Any], limit_s: float) -> Any:
        """Call a function by its name; raises OSError, also where it takes too long."""
        request = json.dumps([name, args, limit_s])
        try:
            data = self._called(request, limit_s + MARGIN_S)
        except TimeoutError:
            data = self._called(request, ANSWER_S - MARGIN_S)
        try:
            answer: dict[str, Any] = dict(json.loads(data))
        except (ValueError, TypeError, RecursionError):
            answer = {"error": "it ended without an answer"}
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        if "error" in answer:
            raise OSError(None, f"cannot call {name} as {self._name}: {answer['error']}")
        return answer.get("result")

    def close(self) -> None:
        """End it."""
        with self._lock:
            self._end()

    def _called(self, text: str, limit_s: float) -> bytes:
        """The answer to one request; TimeoutError ends the program that did not give it."""
        read_end, write_end = os.pipe()
        with open(read_end, "rb", buffering=0) as answers:
            try:
                with open(in_memory(text), "rb") as request:
                    asked = self._send([request.fileno(), write_end])
            finally:
                os.close(write_end)
            try:
                return _read(answers, time.monotonic() + limit_s)
            except TimeoutError:
                with self._lock:
                    if self._running is asked:  # before Linux 6.12, an engine may have stopped it
                        self._end()
                raise

    def _send(self, descriptors: Sequence[int]) -> tuple[socket.socket, Program]:
        """Send a request to the program, to a new one if there is none; return it."""
        with self._lock:
            if self._running is not None:
                with contextlib.suppress(OSError):
                    socket.send_fds(self._running[0], [b"call"], descriptors)
                    return self._running
                self._end()  # before Linux 6.12, an engine may have ended it
            self._running = self._begun()
            socket.send_fds(self._running[0], [b"call"], descriptors)
            return self._running

    def _begun(self) -> tuple[socket.socket, Program]:
        """Start the program; the socket that it listens to."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(ANSWER_S)  # a stopped one's buffer fills
        env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        with theirs, open(os.devnull, "r+b") as nothing:
            words = [sys.executable, "-I", "-S", str(PROGRAM), HOME]
            return ours, self._start(words, env, [theirs.fileno(), *[nothing.fileno()] * 2])

    def _end(self) -> None:
        if self._running is not None:
            link, program = self._running
            self._running = None
            link.close()
            with contextlib.suppress(OSError, TimeoutExpired):
                program.kill()
                program.wait(END_S)


def _read(answers: Any, deadline: float) -> bytes:
    """Read until the other end is closed; raises TimeoutError if that takes longer."""
    poll = select.poll()
    poll.register(answers, select.POLLIN)
    parts: list[bytes] = []
    while sum(map(len, parts)) <= MAX_ANSWER:
        if not poll.poll(max(deadline - time.monotonic(), 0.0) * 1000):
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
