"""The daemon's end of the spawner's socket: a message has one answer, which may come late."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from caovand.adapters import spawner

ANSWER_S = 10.0


class SpawnerLink:
    """Asks the spawner at the other end of `link`. What it starts after nobody waits is killed."""

    def __init__(self, link: socket.socket, answer_s: float = ANSWER_S) -> None:
        self._link, self._lock = link, threading.Lock()
        link.settimeout(answer_s)
        self._late: deque[str] = deque()
        """What was asked without an answer so far, which comes before that to the next message."""
        self._abandoned: set[int] = set()
        """Programs that nobody waits for."""
        self._collecting = False

    def ask(self, asked: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, int]:
        """Send a message and return its answer; OSError, also for a refusal."""
        with self._lock:
            while self._late:
                self._drop(self._received())
            self._reap()
            answer = self._exchanged(asked, descriptors)
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        if "refused" in answer:
            raise OSError(None, f"the spawner refuses: {answer['refused']}")
        return answer

    def abandon(self, pid: int) -> None:
        """KILL a program that nobody can watch, and reap it in time."""
        with self._lock:
            self._abandoned.add(pid)
        with contextlib.suppress(OSError):  # a late answer is as good
            self.ask({"op": "kill", "pid": pid}, [])
            with self._lock:
                self._reap()

    def close(self) -> None:
        """Tell the spawner to end what it started, and itself."""
        with contextlib.suppress(OSError):  # it has ended by itself
            self._link.shutdown(socket.SHUT_RDWR)  # who waits for a late answer wakes up
        self._link.close()

    def _exchanged(self, asked: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        socket.send_fds(self._link, [json.dumps(asked).encode()], descriptors)
        self._late.append(asked["op"])
        try:
            answer = self._received()
        except TimeoutError:
            if not self._collecting:
                self._collecting = True
                threading.Thread(target=self._collect, daemon=True).start()
            raise
        self._late.pop()
        return answer

    def _received(self) -> dict[str, Any]:
        data = self._link.recv(spawner.MAX_MESSAGE)
        if not data:
            raise OSError(None, "the spawner has ended")
        return dict(json.loads(data))

    def _collect(self) -> None:
        """Take late answers as soon as they come: a program that nobody waits for must not run."""
        poll = select.poll()
        with contextlib.suppress(OSError, ValueError):  # the link was closed
            poll.register(self._link, select.POLLIN)
            while True:
                poll.poll()
                with self._lock:
                    if self._late and poll.poll(0):
                        self._drop(self._received())
                    if not self._late:
                        self._collecting = False
                        return
        self._collecting = False

    def _drop(self, answer: Mapping[str, Any]) -> None:
        """Take the oldest late answer; end what was started when nobody waited any more."""
        if self._late.popleft() == "start" and "pid" in answer:
            self._abandoned.add(answer["pid"])
            message = json.dumps({"op": "kill", "pid": answer["pid"]}).encode()
            self._link.send(message)
            self._late.append("kill")

    def _reap(self) -> None:
        for pid in list(self._abandoned):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0]
            except ChildProcessError:  # somebody else reaped it
                ended = pid
            if ended:
                self._abandoned.discard(pid)
