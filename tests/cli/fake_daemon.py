"""A daemon in a thread for tests of caovanctl: real ZeroMQ sockets, canned answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from caovand.adapters.control import Control
from caovand.core.figures import track
from caovand.core.figures.track import Track
from caovand.core.reporting.wire import Notice, Reply, Request

Answer = Mapping[str, Any] | Reply
Answers = Mapping[str, Answer | Callable[[Mapping[str, Any]], Answer]]

STATUS: Mapping[str, Any] = {
    "state": "SERVING",
    "since_s": 12.0,
    "settled": True,
    "reason": "",
    "phase": "",
    "progress": None,
    "detail": "",
    "retry_in_s": None,
    "looking": False,
    "start": None,
    "served": {"name": "m", "host": "h", "port": 1, "url": "http://h:1/v1"},
    "model": "/srv/m",
    "mode": "auto",
    "mode_origin": "/etc/caovan.toml",
    "engine_mode": "auto",
    "mtp": 3,
    "rungs": [],
    "degraded": None,
    "gpus": [],
    "failed": {},
    "warnings": [],
    "restarts": 0,
    "failures": 0,
    "last_failure": None,
    "last_failure_s": None,
    "remedy": None,
    "obstacles": [],
    "refusal": None,
    "generation": 1,
    "revision": 1,
    "engine_pid": 42,
    "log_bytes_lost": 0,
    "reported": {},
    "figures": {**track.describe(Track(), 0.0), "restarts": {}, "memory": []},
    "forecast": {},
    "reached": True,
    "daemon": {"version": "0.1", "pid": 7, "config": "/etc/caovan.toml"},
}


def status(**changes: Any) -> dict[str, Any]:
    """A status document of a daemon that serves, with changes."""
    return {**STATUS, **changes}


class FakeDaemon:
    """Answers each op with what `answers` holds for it; `asked` are the requests it got."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: dict[str, Answer | Callable[[Mapping[str, Any]], Answer]] = {}
        self.asked: list[Request] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(30)

    def publish(self, notice: Notice) -> None:
        """Send a notice to whoever listens."""
        self._loop.call_soon_threadsafe(self._control.publish, notice)

    def stop(self) -> None:
        """End the thread; the sockets are closed then."""
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(30)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._done = asyncio.Event()
        self._control = Control(self.folder, None, self._handle)
        self._control.start()
        self._ready.set()
        await self._done.wait()
        await self._control.close()

    async def _handle(self, request: Request) -> Reply:
        self.asked.append(request)
        answer = self.answers.get(request.op)
        if callable(answer):
            answer = answer(request.args)
        if answer is None:
            return Reply(request.id, code="unknown-op", message=f"cannot do {request.op}")
        if isinstance(answer, Reply):
            return Reply(request.id, None, answer.code, answer.message, answer.hint)
        return Reply(request.id, answer)
