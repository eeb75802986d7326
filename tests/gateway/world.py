"""A gateway with a real client, over a simulated engine and daemon."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import ClientResponse, ClientSession, web

from caovand.adapters.servers import listening
from caovand.core.gateway.requests import ConnectionLimits
from caovand.core.reporting import wire
from caovand.core.reporting.wire import Reply, Request
from caovand.gateway import server
from caovand.gateway.survivor import Marks
from tests.patience import LOOK_S
from tests.ports import free_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CHAT = "/v1/chat/completions"
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
STREAMED = {**HELLO, "stream": True}
LIMITS = asdict(ConnectionLimits())


class FakeDaemon:
    """Answers on a socket `gateway`; `says` is what it says of its engine."""

    def __init__(self, path: Path, port: int) -> None:
        self.path, self.seq = path, 1
        self.says: dict[str, Any] = {
            "engine": "serving", "generation": 1, "at_once": None, "expected_s": None,
            "returns": True, "phase": "", "names": ["tiny"], "context": 4096,
            "url": f"http://127.0.0.1:{port}", "key": "", "hold_s": 300.0, "max_waiting": 1000,
            "aliases": {}, "temperature": None, "max_tokens": None, "effort": None,
            "alias_defaults": {},
            "limits": LIMITS,
            "keys": None, "used": {"day": 0, "tokens": {}}, "keep_alive_s": 0.0,
            "reuses_connections": True, "health": "/health", "reading_rate": None,
        }  # fmt: skip
        self.reports: list[dict[str, Any]] = []
        self.used: list[list[Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.deaf = 0
        """How many reports it does not take."""
        self._news = asyncio.Event()
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    def say(self, engine: str, **more: Any) -> None:
        """Tell the gateway at once."""
        generation = self.says["generation"] + (engine == "serving")
        self.says = {**self.says, "engine": engine, "generation": generation, **more}
        self.seq += 1
        self._news.set()
        self._news = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._reply(wire.decode_request(await reader.readline()), writer)
        writer.close()

    async def _reply(self, request: Request, writer: asyncio.StreamWriter) -> None:
        result: dict[str, Any] = {}
        if request.op == "gateway_report" and self.deaf:
            self.deaf -= 1
            return  # it closes the connection
        if request.op == "gateway_report":
            self.reports.append(dict(request.args))
        elif request.op == "gateway_used":
            self.used += request.args["used"]
        elif request.op == "gateway_requests":
            self.requests += request.args["requests"]
        else:
            if request.args["since"] == self.seq:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._news.wait(), request.args["wait_s"])
            result = {**self.says, "seq": self.seq}
        writer.write(wire.encode_reply(Reply("", result)) + b"\n")


class FakeEngine:
    """An HTTP server whose answers tests choose; `asked` are the requests so far."""

    def __init__(self) -> None:
        self.answer: Handler = whole
        self.models = {"data": [{"id": "adapter"}, {"id": 7}, "odd"]}
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.peers: list[asyncio.BaseTransport | None] = []
        """The connections that these came on."""
        self.accepted: list[asyncio.BaseTransport] = []
        """Every connection so far, whether or not a request came on it."""
        self.left = 0
        self.health, self.health_checks = 200, 0
        self._runner: web.AppRunner | None = None

    async def start(self, port: int) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.add_routes([web.route("*", "/{path:.*}", self._handle)])
        self._runner = web.AppRunner(app, auto_decompress=False)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        made = server.connection_made

        def accept(handler: web.RequestHandler, transport: asyncio.Transport) -> None:
            self.accepted.append(transport)
            made(handler, transport)

        server.connection_made = accept  # type: ignore[method-assign]
        await web.TCPSite(self._runner, "127.0.0.1", port).start()

    async def stop(self) -> None:
        """End as a killed process does: every connection is cut."""
        if self._runner is not None:
            assert self._runner.server is not None
            for connection in self._runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response(self.models)
        if request.path == "/health":
            self.health_checks += 1
            return web.Response(status=self.health)
        body = await request.read()
        self.peers.append(request.transport)
        self.asked.append((request.method, request.raw_path, dict(request.headers), body))
        answering = asyncio.ensure_future(self.answer(request))
        try:
            # Not every release of the library cancels a handler.
            while not answering.done() and request.transport is not None:
                await asyncio.wait([answering], timeout=LOOK_S)
            return answering.result()
        except asyncio.InvalidStateError:
            raise ConnectionResetError from None
        finally:
            self.left += answering.cancel() or isinstance(answering.exception(), ConnectionError)


async def whole(request: web.Request) -> web.Response:
    return web.json_response({"choices": [{"text": "hi"}]}, headers={"X-Engine": "1"})


def events(*texts: str, then: Callable[[], Awaitable[Any]] | None = None) -> Handler:
    """Stream these texts, then wait for what `then` makes."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for text in texts:
            await response.write(f"data: {text}\n\n".encode())
        if then is not None:
            await then()
        await response.write(b"data: [DONE]\n\n")
        return response

    return answer


async def for_ever(request: web.Request | None = None) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


class World:
    gateway: server.RunningGateway

    def __init__(
        self, session: ClientSession, port: int, daemon: FakeDaemon, engine: FakeEngine
    ) -> None:
        self.session, self.port, self.daemon, self.engine = session, port, daemon, engine
        self.url = f"http://127.0.0.1:{port}"

    async def post(self, path: str = CHAT, **more: Any) -> tuple[int, Any]:
        more = more or {"json": HELLO}
        async with self.session.post(self.url + path, **more) as got:
            return got.status, await content(got)

    async def get(self, path: str, **more: Any) -> tuple[int, Any]:
        async with self.session.get(self.url + path, **more) as got:
            return got.status, await content(got)

    async def raw(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        return reader, writer


async def content(got: ClientResponse) -> Any:
    return await (got.json() if got.content_type == "application/json" else got.text())


def last_event(text: str) -> Any:
    """The document of the last event of a stream."""
    return json.loads(text.strip().split("\n\n")[-1].split("data: ")[1])


@contextlib.asynccontextmanager
async def world(folder: Path, **says: Any) -> AsyncIterator[World]:
    """A gateway on a port of its own; `says` changes what the daemon says at first."""
    port, own = free_port(), free_port()
    engine, daemon = FakeEngine(), FakeDaemon(folder / "gateway", port)
    daemon.says.update(says)
    await daemon.start()
    await engine.start(port)
    listener = listening.listen_on(f"127.0.0.1:{own}", 64)
    gateway = await server.start(listener, daemon.path, 1 << 20, Marks())
    try:
        async with ClientSession() as session:
            one = World(session, own, daemon, engine)
            one.gateway = gateway
            one.engine_port = port  # type: ignore[attr-defined]
            yield one
    finally:
        await gateway.stop()
        await engine.stop()
        await daemon.stop()
