"""The gateway's question to the engine whether it lives."""

from __future__ import annotations

from pathlib import Path

import pytest

from caovand.gateway import health
from tests.gateway.test_server import run
from tests.gateway.world import World


def test_an_engine_is_healthy_if_it_answers_without_a_fault_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(one: World) -> None:
        gateway = one.gateway
        upstream, facts = gateway.upstream, gateway.desk.facts
        for status, healthy in ((200, True), (401, True), (500, False), (503, False)):
            one.engine.health = status
            assert await health.is_healthy(upstream, facts) is healthy
        one.engine.health = 200
        monkeypatch.setattr(health, "ANSWER_S", 1e-6)
        assert not await health.is_healthy(upstream, facts), "no answer in time"
        monkeypatch.undo()
        await one.engine.stop()
        assert not await health.is_healthy(upstream, facts), "nobody listens"

    run(tmp_path, test)
