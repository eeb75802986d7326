"""A page over a daemon that is a table of answers, and a real HTTP client for it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aiohttp import ClientResponse, ClientSession

from caovand.adapters.servers import listening
from caovand.core.reporting import wire
from caovand.core.reporting.wire import Reply
from caovand.page import server
from caovand.page.server import Page
from tests.patience import LIMIT_S
from tests.ports import free_port

STATUS = {
    "state": "SERVING", "since_s": 1.0, "warnings": [], "gpus": [],
    "figures": {"memory": []}, "served": None,
    "daemon": {"version": "1", "pid": 1, "config": "/etc/caovan.toml"},
    "slots": [{"name": "main", "state": "SERVING"}],
}  # fmt: skip
REPORT = {
    "number": 1, "at": "2026-01-01T00:00:00", "failure": "hang", "decision": {
        "verdict": "retry", "text": "the same plan again", "obstacles": ["memory"],
    },
    "finding": {"phase": "serving", "text": "no progress"}, "plan": None, "processes": [],
    "answer": {"certainty": "likely", "why": "it fits", "changes": [], "heals": "yes",
               "how": "the same plan again", "resembles": ["a/b#1"]},
    "cause": {"line": "it hung", "before": ["a"], "after": []},
    "nodes": [{"name": "n2", "rank": 1, "file": "node-1.json"},
              {"name": "n3", "rank": 2, "file": "node-2.json"}],
}  # fmt: skip
RECENT = {
    "age_s": [5.0, 0.0], "generation_tokens_per_s": [1.0, 2.0], "card_age_s": [4.0, 0.0],
    "cards": {"0": {"power_w": [200.0, None], "utilization": [50, 60], "temperature": [70, 71]}},
}  # fmt: skip
HISTORY = {
    "since": 0, "until": 240, "days": 30, "problem": "", "step_s": 60,
    "at": [60, 180], "figures": {"up": [1.0, 0.5]}, "marks": [], "marks_left_out": 0,
    "cards": {"0": {"at": [60], "used_mib": [1.0], "temperature": [50.0],
                    "utilization": [1.0], "power_w": [100.0], "throttled": [0.0]}},
}  # fmt: skip
PLAN = {
    "model": "/m", "argv": ["vllm"], "settings": {}, "env": {}, "warnings": [], "extra_args": [],
}  # fmt: skip
NODE = {"name": "n2", "rank": 1, "missing": "the node is silent"}


class FakeDaemon:
    """Answers on a socket `page`; tests change what it knows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.status: dict[str, Any] = json.loads(json.dumps(STATUS))
        self.events = [
            {"v": 1, "seq": n, "at": 0.0, "kind": "state", "text": f"event {n}", "data": {}}
            for n in range(1, 4)
        ]
        self.lines = [f"line {n}" for n in range(1, 6)]
        self.endpoint: dict[str, Any] | None = None
        self.plan: dict[str, Any] | None = json.loads(json.dumps(PLAN))
        self.incidents = [{"number": 1}]
        self.cluster: dict[str, Any] = {"role": "off"}
        self.requests: list[dict[str, Any]] = []
        self.recent = json.loads(json.dumps(RECENT))
        self.history = json.loads(json.dumps(HISTORY))
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = wire.decode_request(await reader.readline())
        self.asked.append((request.op, request.model, dict(request.args)))
        writer.write(wire.encode_reply(self._reply(request.op, dict(request.args))) + b"\n")
        writer.close()

    def _reply(self, op: str, args: dict[str, Any]) -> Reply:
        if op == "logs":
            end = len(self.lines)
            since = args.get("since", max(end - args.get("lines", 0), 0))
            result = {"lines": self.lines[since:], "last": end, "more": False, "end": end}
            return Reply("", result)
        if op == "endpoint" and self.endpoint is None:
            text = "cannot send a chat: the engine is STARTING"
            return Reply("", None, "not-serving", text, "wait until it serves")
        if op == "plan" and self.plan is None:
            text = "cannot show a plan: none exists yet"
            return Reply("", None, "no-plan", text, "caovanctl status")
        if op == "incident" and args["number"] != 1:
            text = f"cannot find incident {args['number']}: there is none"
            return Reply("", None, "no-incident", text, "caovanctl incidents")
        documents = {"incident.json": REPORT, "node-1.json": NODE}
        data = json.dumps(documents.get(args.get("file", "incident.json"))).encode()
        offset = args.get("offset", 0)
        results = {
            "status": self.status,
            "recent": self.recent,
            "events": {"events": [e for e in self.events if e["seq"] > args.get("since", 0)]},
            "plan": self.plan,
            "incidents": {"incidents": self.incidents},
            "incident": {
                "files": dict.fromkeys(documents, 1),
                "data": base64.b64encode(data[offset : offset + 50]).decode(),
                "next": offset + 50 if offset + 50 < len(data) else None,
            },
            "history": self.history,
            "endpoint": self.endpoint,
            "cluster": self.cluster,
            "requests": {"requests": self.requests},
        }  # fmt: skip
        return Reply("", results[op])


class Browser:
    """A client of the page, its server and the daemon behind it."""

    def __init__(self, session: ClientSession, port: int, page: Page, daemon: FakeDaemon) -> None:
        self.session, self.port, self.page, self.daemon = session, port, page, daemon
        self.url = f"http://127.0.0.1:{port}"

    async def get(self, path: str, **more: Any) -> tuple[int, Any]:
        async with self.session.get(self.url + path, **more) as got:
            return got.status, await body(got)

    async def post(self, path: str, **more: Any) -> tuple[int, Any]:
        async with self.session.post(self.url + path, allow_redirects=False, **more) as got:
            return got.status, await body(got)

    @contextlib.asynccontextmanager
    async def live(self, **headers: str) -> AsyncIterator[Live]:
        async with self.session.get(f"{self.url}/api/live", headers=headers) as got:
            assert got.status == 200, await got.text()
            yield Live(got)

    async def raw(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection with these bytes sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        return reader, writer


class Live:
    """Server-sent events as they come."""

    def __init__(self, response: ClientResponse) -> None:
        self._response = response

    async def next(self, *kinds: str) -> tuple[str, Any, str]:
        """The next event of one of these kinds: kind, data and id."""
        while True:
            fields: dict[str, str] = {}
            while line := (await self._line()).strip():
                name, _, value = line.partition(": ")
                fields[name] = value
            if fields and (not kinds or fields["event"] in kinds):
                return fields["event"], json.loads(fields["data"]), fields.get("id", "")

    async def until(self, kind: str, holds: Callable[[Any], bool]) -> Any:
        """The first event of this kind for which that holds."""
        while not holds(found := (await self.next(kind))[1]):
            pass
        return found

    async def _line(self) -> str:
        line = await asyncio.wait_for(self._response.content.readline(), LIMIT_S)
        assert line, "the stream ended"
        return line.decode()


async def body(got: ClientResponse) -> Any:
    return await (got.json() if got.content_type == "application/json" else got.text())


@contextlib.asynccontextmanager
async def browser(folder: Path, token: str = "", host: str = "127.0.0.1") -> AsyncIterator[Browser]:
    """A page on a port of its own, with a client."""
    daemon, port = FakeDaemon(folder / "page"), free_port()
    await daemon.start()
    listener: socket.socket = listening.listen_on(f"{host}:{port}", 64)
    page = await server.start(listener, f"{host}:{port}", daemon.path, token)
    try:
        async with ClientSession() as session:
            yield Browser(session, port, page, daemon)
    finally:
        listener.close()
        await daemon.stop()
