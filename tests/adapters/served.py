"""Serve the daemon's sockets from a test, and invalid frames."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.control import Control
from caovand.core.reporting.wire import Reply, Request

ODD = [
    b"",
    b"\0",
    b"{",
    b"null",
    b"[]",
    b'{"v":2,"id":"a","op":"status"}',
    b'{"v":1,"id":"a","op":7}',
    b'{"v":1,"id":"a","op":"status","args":[]}',
    b'{"v":1,"id":' + b'"' + b"x" * 100 + b'","op":"status"}',
    b'{"v":1,"id":"\\ud800","op":"nothing"}',
    b"\xff" * 100,
    b"[" * 50_000,
    b"9" * 50_000,
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: socket paths have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="caovan-") as name:
        yield Path(name)


async def echo(request: Request) -> Reply:
    return Reply(request.id, {"op": request.op, "args": dict(request.args)})


Handler = Callable[[Request], Coroutine[Any, Any, Reply]]


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    handler: Handler = echo,
    group: str | None = None,
    admits: Callable[[str, int], bool] = lambda name, pid: True,
) -> AsyncIterator[Control]:
    served = Control(folder, group, handler, admits)
    served.start()
    try:
        yield served
    finally:
        await served.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())
