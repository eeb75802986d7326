"""A killed gateway's clients: a process of its own, which is killed in mid-answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession, web

from caovand.adapters.servers import listening
from tests.daemon_process import ROOT
from tests.gateway.world import (
    CHAT,
    HELLO,
    STREAMED,
    FakeDaemon,
    FakeEngine,
    World,
    content,
    events,
    for_ever,
    last_event,
)
from tests.patience import soon
from tests.ports import free_port

AGAIN = "send it again (Retry-After: 2 s)"


class Killed(World):
    """A world whose gateway is a process."""

    process: asyncio.subprocess.Process

    def descriptors(self) -> int:
        """How many the gateway has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def sleeps(self) -> bool:
        """Whether the gateway has done all there is to do."""
        return (
            Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
        )

    async def kill(self) -> None:
        await soon(self.sleeps)
        self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def process(folder: Path) -> AsyncIterator[Killed]:
    port, own = free_port(), free_port()
    engine, daemon = FakeEngine(), FakeDaemon(folder / "gateway", port)
    await daemon.start()
    await engine.start(port)
    with listening.listen_on(f"127.0.0.1:{own}", 64) as listener:
        words = ["--listen", f"127.0.0.1:{own}", "--listener", str(listener.fileno())]
        one = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "caovand.gateway", *words, "--socket", str(daemon.path),
            "--max-body-mib", "1", cwd=ROOT, pass_fds=[listener.fileno()],
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
    try:
        assert one.stdout is not None
        assert await one.stdout.readline() == b"ready\n"
        async with ClientSession() as session:
            made = Killed(session, own, daemon, engine)
            made.process = one
            yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            one.kill()
        await one.wait()
        await engine.stop()
        await daemon.stop()


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (CHAT, lambda last: last["error"]["code"] == "gateway_died"),
        ("/v1/responses", lambda last: last["code"] == "gateway_died"),
        ("/v1/messages", lambda last: last["error"]["type"] == "overloaded_error"),
    ],
)
def test_a_begun_stream_ends_with_its_protocols_error(tmp_path: Path, path: str, code: Any) -> None:
    async def test() -> None:
        async with process(tmp_path) as world:
            world.engine.answer = events("one", then=for_ever)
            async with world.session.post(world.url + path, json=STREAMED) as got:
                assert await got.content.readline() == b"data: one\n"
                assert await got.content.readline() == b"\n"
                await world.kill()
                last = last_event(await got.text())
            assert code(last)
            assert AGAIN in json.dumps(last)
            await soon(lambda: world.engine.left == 1)

    asyncio.run(test())


def test_a_stream_of_http_1_0_ends_with_the_event_and_the_connection(tmp_path: Path) -> None:
    async def test() -> None:
        async with process(tmp_path) as world:
            world.engine.answer = events("one", then=for_ever)
            body = json.dumps(STREAMED).encode()
            head = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            reader, writer = await world.raw(b"POST %b HTTP/1.0\r\n" % CHAT.encode() + head + body)
            await reader.readuntil(b"data: one\n\n")
            await world.kill()
            assert last_event((await reader.read()).decode())["error"]["code"] == "gateway_died"
            writer.close()

    asyncio.run(test())


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_what_has_no_answer_yet_is_refused_with_retry_after(tmp_path: Path, path: str) -> None:
    async def test() -> None:
        async with process(tmp_path) as world:
            world.engine.answer = for_ever
            asking = asyncio.ensure_future(world.session.post(world.url + path, json=HELLO))
            await soon(lambda: world.engine.asked)
            await world.kill()
            got = await asking
            assert (got.status, got.headers["Retry-After"]) == (503, "2")
            assert AGAIN in json.dumps(await content(got))

    asyncio.run(test())


@pytest.mark.parametrize("texts", [["half", "x" * (16 << 20)], []], ids=["unsent", "within one"])
def test_nothing_is_written_into_an_event(tmp_path: Path, texts: list[str]) -> None:
    """Neither while the client reads too slowly, nor where the engine has sent half an event."""

    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: half")
        return await for_ever()

    async def test() -> None:
        async with process(tmp_path) as world:
            world.engine.answer = events(*texts, then=for_ever) if texts else half
            async with world.session.post(world.url + CHAT, json=STREAMED) as got:
                await got.content.readexactly(len("data: half"))
                await world.kill()
                with pytest.raises(ClientError):
                    assert b"gateway_died" not in await got.read()

    asyncio.run(test())


def test_a_thousand_streams_leave_no_descriptor_and_no_mark(tmp_path: Path) -> None:
    async def test() -> None:
        async with process(tmp_path) as world:
            world.engine.answer = events("one")
            await world.post(json=STREAMED)
            before = world.descriptors()
            for _ in range(1000):
                await world.post(json=STREAMED)
            # Clients and engine may have one more connection open for the next request.
            assert world.descriptors() <= before + 2
            reader, writer = await world.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"}")
            await world.kill()
            assert await reader.read() == b""
            writer.close()

    asyncio.run(test())
