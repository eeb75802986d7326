"""The daemon's end of the spawner's socket. A spawner that does not answer in time is abandoned."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from caovand.adapters.privileges import spawner

ANSWER_S = 5.0
"""The spawner answers within milliseconds; the loop may wait this long once, and never again."""


class SpawnerEnded(OSError):
    """The spawner has exited or was abandoned: no engine can be started or stopped any more."""

    def __init__(self, why: str) -> None:
        super().__init__(None, why)

    def __str__(self) -> str:
        return str(self.strerror)


class SpawnerLink:
    """Send requests to the spawner at the other end of `link`; call `on_silence` once it is
    abandoned."""

    def __init__(
        self,
        link: socket.socket,
        on_silence: Callable[[], None] = lambda: None,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._link, self._lock = link, threading.Lock()
        self._on_silence, self._answer_s = on_silence, answer_s
        link.settimeout(answer_s)
        self._gone = False
        self.why_ended = "the engine spawner has exited"
        """Why no more requests are possible; "" while they are."""
        self._abandoned: set[int] = set()
        """Programs that nobody waits for."""

    def ask(self, asked: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, int]:
        """Send a message and return its answer; raises OSError (also if refused), SpawnerEnded."""
        with self._lock:
            self._reap()
            answer = self._exchange(asked, descriptors)
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        if "refused" in answer:
            raise OSError(None, f"the engine spawner refuses: {answer['refused']}")
        return answer

    def abandon(self, pid: int) -> None:
        """KILL a program that nobody can watch, and reap it in time."""
        with self._lock:
            self._abandoned.add(pid)
        with contextlib.suppress(OSError):
            self.ask({"op": "kill", "pid": pid}, [])
            with self._lock:
                self._reap()

    def close(self) -> None:
        """Tell the spawner to kill its children and exit."""
        self._hang_up()
        self._link.close()

    def _exchange(self, asked: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        data = b""
        if not self._gone:
            try:
                socket.send_fds(self._link, [json.dumps(asked).encode()], descriptors)
                data = self._link.recv(spawner.MAX_MESSAGE)
            except TimeoutError:
                self.why_ended = f"the engine spawner did not answer for {self._answer_s:g} s"
                self._hang_up()
                self._on_silence()
            except ConnectionError:
                pass
        if not data:
            self._gone = True
            raise SpawnerEnded(self.why_ended)
        return dict(json.loads(data))

    def _hang_up(self) -> None:
        self._gone = True
        with contextlib.suppress(OSError):  # it has exited on its own
            self._link.shutdown(socket.SHUT_RDWR)

    def _reap(self) -> None:
        for pid in list(self._abandoned):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0]
            except ChildProcessError:  # someone else reaped it
                ended = pid
            if ended:
                self._abandoned.discard(pid)
