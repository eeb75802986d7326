"""One card: what flags that are new since vLLM 0.21 gain or cost, one daemon, each after a reload.

Meant for CAOVAN_CARDS_GRAPHS=1. Each way is a test of its own and prints its row; the first one is
what the others are compared with. CAOVAN_CARDS_FLAGS=off leaves the plugin's kernels out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.cards.conftest import running, serves
from tests.cards.server import NEW, Server, configured, drawn, speeds
from tests.cards.test_serving import CLOSE, Answers, farthest
from tests.ports import free_port

KERNELS = os.environ.get("CAOVAN_CARDS_FLAGS", "all")
UNIT = ("--prefix-match-unit", "16")
FEWER = {"method": "mtp", "num_speculative_tokens": 3,
         "num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 4, 1], [5, 8, 0]]}  # fmt: skip
WAYS: dict[str, tuple[str, ...]] = {
    "as planned": (),
    "prefix-match-unit 16": UNIT,
    "drafts by batch size": ("--speculative-config", json.dumps(FEWER)),
    "priority": ("--scheduling-policy", "priority"),
    "int8_per_token_head": ("--kv-cache-dtype", "int8_per_token_head"),
    "int4_per_token_head": ("--kv-cache-dtype", "int4_per_token_head"),
    "int4, match unit 16": ("--kv-cache-dtype", "int4_per_token_head", *UNIT),
}
COARSE = ("int8", "int4")
TURNS = (700, 1_501, 3_003, 6_007)


@dataclass
class Found:
    """What the first way gave."""

    speeds: dict[str, float] = field(default_factory=dict)
    turns: Answers = field(default_factory=list)


@pytest.fixture(scope="module")
def server(cards: int) -> Iterator[Server]:
    """The daemon that serves the hybrid in each way."""
    port = free_port()
    with running(configured(port, CAOVAN_KERNELS=KERNELS)) as one:
        serves(one)
        yield Server(one, port)


@pytest.fixture(scope="module")
def first() -> Found:
    return Found()


def second_turns(server: Server) -> tuple[Answers, float]:
    """Second turns of known conversations, and the share of their prompts that was cached."""
    found: Answers = []
    asked = 0
    before = server.counter("vllm:prefix_cache_hits_total")
    for length in TURNS:
        prompt = drawn(length, seed=length)
        server.answer(prompt, 8)
        second = [*prompt, *drawn(NEW, seed=7)]
        asked += len(second)
        answer = server.answer(second, 16)[1]
        found.append((answer["token_ids"], answer["logprobs"]["token_logprobs"]))
    return found, (server.counter("vllm:prefix_cache_hits_total") - before) / asked


@pytest.mark.parametrize("way", WAYS)
def test_a_way_to_serve(way: str, server: Server, first: Found) -> None:
    status = (
        server.reloads(*WAYS[way], CAOVAN_KERNELS=KERNELS) if WAYS[way] else serves(server.daemon)
    )
    turns, cached = second_turns(server)
    found = speeds(server, way)
    found["8 at once tok/s"] = server.many(8, 256)
    print(f"{way}: {cached:.2%} of second turns cached; {status['forecast']}", flush=True)
    if not first.speeds:
        first.speeds, first.turns = found, turns
    changes = ((value, value / first.speeds[name] - 1) for name, value in found.items())
    cells = (f"{value:.4g} ({change:+.1%})" for value, change in changes)
    print(f"| {way} | {cached:.2%} | {' | '.join(cells)} |", flush=True)
    most = farthest(first.turns, turns)
    assert not status["failures"]
    assert most < CLOSE or way.startswith(COARSE)
