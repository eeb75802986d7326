"""Requests to an engine's server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from caovand.adapters.network import http
from caovand.adapters.network.http import Endpoint, HttpResponse
from caovand.daemon.engine import scrape
from caovand.engines.registry import engine_of

HERE = Endpoint("127.0.0.1", 1)


@pytest.mark.parametrize(("known", "pending", "asked"), [(0, 5, 1), (2, 2, 0)])
def test_the_engine_is_asked_for_pending_requests_only_where_the_gateway_knows_of_none(
    monkeypatch: pytest.MonkeyPatch, known: int, pending: int, asked: int
) -> None:
    counted: list[Any] = []

    def count(*args: Any) -> int:
        counted.append(args)
        return 5

    monkeypatch.setattr(
        http, "call", lambda *_: HttpResponse(200, "vllm:num_requests_running 1.0\n")
    )
    monkeypatch.setattr(http, "read_count", count)
    found = asyncio.run(scrape.metrics(HERE, engine_of().api, known))
    assert found is not None
    assert found.reading.progress.pending == pending
    assert len(counted) == asked


def test_an_engine_without_such_a_count_has_the_gateway_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "call", lambda *_: HttpResponse(200, "llamacpp:n_decode_total 1\n"))
    api = replace(engine_of("llamacpp").api, pending="")
    for known, pending in ((0, None), (3, 3)):
        found = asyncio.run(scrape.metrics(HERE, api, known))
        assert found is not None
        assert found.reading.progress.pending == pending


def test_pending_requests_of_an_engine_that_counts_nothing_are_no_hang() -> None:
    reading = engine_of("ollama").api.read_metrics('{"models": []}', 3, 0.0)
    assert reading.progress.pending is None
