"""One card, 64 layers of a 27B in 4 bits: vLLM's own kernels, caovan's, and every lever, in turn.

Meant for vLLM 0.33, CAOVAN_CARDS_GRAPHS=1 and a card of 139 GiB. CAOVAN_CARDS_WAYS are the ways in
their order, such as off+all, and CAOVAN_CARDS_LENGTHS the tokens of the prompts, the last of which
take vLLM's own kernels minutes. What a way has measured stays in CAOVAN_CARDS_CACHE, so that
several runs, on several cards at a time, make one table. Each figure is printed and kept as soon as
it is there: a run that is cut short leaves what it has.

Weights are drawn (drawn_weights.py). They show what a step costs, what memory it takes, and how far
kernels, caches and rounding move logits. No draft is accepted, so a token is a step; they do not
show acceptance, quality, or channels that stand out, as those of trained models do.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from caovand.cli.common.planned import plan_for
from caovand.cli.common.survey import configuration as read
from caovand.cli.common.survey import inspect
from caovand.lab.core.fieldtest.trials import FORCE
from tests.cards import test_attention, test_lm_head
from tests.cards.conftest import (
    CACHE,
    CARD,
    OUR_KERNELS,
    configuration,
    engine_plugin,
    running,
    serves,
    shown,
)
from tests.cards.server import Server, Streamed, drawn
from tests.cards.shapes import WHOLE_27B
from tests.cards.test_forecasts import FOUND, MAX_OFF, cells, forecast, reported
from tests.cards.test_serving import SOME, Answers, answers, farthest
from tests.daemon_process import Daemon
from tests.ports import free_port

WAYS = {
    "off": {"CAOVAN_KERNELS": "off"},
    "all": {"CAOVAN_ATTENTION": "all", **test_lm_head.WAYS["drafts"]},
    "kernels": {"CAOVAN_ATTENTION": "all"},
}
ASKED = os.environ.get("CAOVAN_CARDS_WAYS", "off+all+kernels").split("+")
KEPT = CACHE / "levers"
LENGTHS = os.environ.get("CAOVAN_CARDS_LENGTHS", "4096+32768+131072+250000")
SHORT, LONG = (
    tuple(length for length in map(int, LENGTHS.split("+")) if (length > 100_000) is long)
    for long in (False, True)
)
"""Prompts of their own, and beginnings of one that is read once."""
TOGETHER, TOKENS, LAST = 4, 49, 8
"""Requests that share a prompt but for its last tokens, and what each generates at least."""
LASTING_MS, FEWEST = 4_000.0, 16
"""How long each generates: the last begins while the first generates, and the API server reads a
long prompt's text before it sends the first token. A median is of so many tokens of each at least.
"""
HITS, PREEMPTED = "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total"
MOST_S = 90.0
"""Requests together are left out where reading their last tokens takes longer."""
HELD, OFF = ("weights_gib", "kv_gib", "kv_tokens"), "forecast / found - 1: "
FASTER = 32_768
"""From here on every lever together must be faster: a shorter step is launches and weights."""
CLOSE = {"kernels": test_attention.CLOSE, "all": test_attention.CLOSE + test_lm_head.CLOSE}
"""How far logprobs may be from vLLM's own."""


@dataclass
class Measured:
    """What one way has measured: its figures, its answers and the logprobs of a prompt."""

    figures: dict[str, float] = field(default_factory=dict)
    answered: Answers = field(default_factory=list)
    read: list[float] = field(default_factory=list)

    def keep(self, way: str) -> None:
        """Write it where `kept` finds it."""
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / f"{way}.json").write_text(json.dumps(asdict(self)))


def step_ms(streams: Sequence[Streamed]) -> float:
    """Median milliseconds of a step, a token for each, while all of them generate."""
    begin = max(one.begun + one.parts[0][0] for one in streams)
    end = min(one.begun + one.parts[-1][0] for one in streams)
    steps = []
    for one in streams:
        parts = [(one.begun + at, count) for at, count in one.parts]
        mine = [
            (b - a) / count
            for (a, _), (b, count) in pairwise(parts)
            if begin <= a and b <= end
            for _ in range(count)  # tokens that came together
        ]
        assert len(mine) >= FEWEST, f"{len(mine)} tokens together"
        steps += mine
    print(
        f"  {len(steps)} steps of {len(streams)} together, in ms:"
        f" {', '.join(f'{1000 * step:.1f}' for step in sorted(steps)[-5:])} the longest; the last"
        f" began {begin - min(one.begun for one in streams):.2f} s after the first asked",
        flush=True,
    )
    return 1000 * median(steps)


def measure(server: Server, result: Measured, way: str) -> None:
    """Add answers, then prefill and decode at each length, to the result."""

    def found(name: str, value: float) -> None:
        result.figures[name] = value
        result.keep(way)
        print(f"  {name}: {value:.5g}", flush=True)

    def decoded(prompt: Sequence[int]) -> tuple[float, float]:
        """Seconds until its first token, and how many of its own the prefix cache had."""
        at, before = f"at {len(prompt):,}", server.counter(HITS)
        alone = server.stream(prompt, TOKENS)
        known = server.counter(HITS) - before
        print(f"  {at}: {alone.parts[0][0]:.5g} s, {known:,.0f} from the prefix cache", flush=True)
        result.answered.append((alone.tokens, alone.logprobs))
        step = step_ms([alone])
        found(f"step {at}, ms", step)
        ends = [[*prompt[:-LAST], *drawn(LAST, seed=n + 1)] for n in range(TOGETHER + 1)]
        turn, _ = server.answer(ends.pop())
        found(f"the same but for {LAST} tokens {at}, s", turn)
        if TOGETHER * turn < MOST_S:
            counted = {name: server.counter(name) for name in (HITS, PREEMPTED)}
            with ThreadPoolExecutor(TOGETHER) as clients:
                count = max(TOKENS, int(LASTING_MS / step))
                streams = list(clients.map(lambda one: server.stream(one, count), ends))
            for name, before in counted.items():
                print(f"  {name}: {server.counter(name) - before:,.0f} of all", flush=True)
            found(f"step of {TOGETHER} {at}, ms", step_ms(streams))
        else:
            print(f"  {TOGETHER} requests {at} are left out: reading takes too long", flush=True)
        return alone.parts[0][0], known

    result.answered = answers(server, SOME, 48)  # and compiles what is compiled late
    result.read = test_lm_head.of_prompt(server)
    for length in SHORT:
        found(f"prefill {length:,}, s", decoded(drawn(length, seed=length))[0])
    whole, seconds = drawn(LONG[-1], seed=LONG[-1]) if LONG else [], 0.0
    for length in LONG:
        taken, known = decoded(whole[:length])
        seconds = taken + (seconds if known else 0)  # the first is the beginning of the second
        found(f"prefill {length:,}, s", seconds)
    accepted, drafted = (
        server.counter(f"vllm:spec_decode_num_{what}_tokens_total")
        for what in ("accepted", "draft")
    )
    print(f"  {accepted:.0f} of {drafted:.0f} drafts accepted", flush=True)


def memory(one: Daemon, status: dict[str, Any], log: str) -> dict[str, float]:
    """The memory that was found, with how far off the daemon's forecast was; a row of both."""
    config, real = read(one.config_path), reported(log)
    machine = inspect(config, engine_pid=status["engine_pid"]).with_model(config)
    wanted = forecast(plan_for(config, machine, None, cache=CACHE))
    print(f"| {' | '.join(FOUND)} |\n| {' | '.join(cells(wanted, real))} |", flush=True)
    return {**real, **{f"{OFF}{name}": status["forecast"][name]["off"] for name in HELD}}


def configured(way: str, port: int, model: Path, plugin: Path) -> str:
    context = WHOLE_27B.config["max_position_embeddings"]
    policy = "\n".join(f"{name} = {value}" for name, value in WHOLE_27B.policy.items())
    # Reading 250,000 tokens by Triton takes minutes without a token.
    more = f"stable_after_s = 2\nhang_s = 600\n[policy]\n{policy}"
    words = ["--load-format", "dummy", *OUR_KERNELS, *WHOLE_27B.args]
    env = {FORCE: "1", "PYTHONPATH": str(plugin), **WAYS[way]}
    return configuration("hybrid", port, [CARD], words, env, more, path=model, context=context)


def kept() -> dict[str, Measured]:
    """What this run and those before it have measured, by way."""
    files = ((way, KEPT / f"{way}.json") for way in WAYS)
    return {way: Measured(**json.loads(file.read_text())) for way, file in files if file.exists()}


def tabled(found: dict[str, Measured]) -> dict[str, float]:
    """The table; how far each way's logprobs are from vLLM's own."""
    print(f"| | {' | '.join(found)} | {' | '.join(f'{way} / off' for way in found)} |")
    print("| --- " * (2 * len(found) + 1) + "|")
    for name in dict.fromkeys(name for one in found.values() for name in one.figures):
        row = [one.figures.get(name, float("nan")) for one in found.values()]
        texts = [f"{value:.4g}" for value in row]
        off = found["off"].figures.get(name, 0.0) if "off" in found else 0.0
        compared = off and not name.startswith(OFF)
        texts += [f"{value / off:.3f}" if compared else "" for value in row]
        print(f"| {name} | {' | '.join(texts)} |", flush=True)
    apart = {}
    for way in found.keys() & CLOSE.keys() if "off" in found else ():
        print(f"{way} against off: ", end="")
        count = min(len(found[way].answered), len(found["off"].answered))  # one may be cut short
        apart[way] = farthest(found[way].answered[:count], found["off"].answered[:count])
        rows = zip(found[way].read, found["off"].read, strict=True)
        most = max(abs(one - other) for one, other in rows)
        print(f"  logprobs of a prompt's own tokens within {most:.4f}", flush=True)
        apart[way] = max(apart[way], most)
    return apart


def test_every_lever_is_faster_in_a_27b_and_answers_as_vllm_does(
    cards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHE_DIRECTORY", str(CACHE))  # has what the daemon asked the engine
    port, model, plugin = free_port(), WHOLE_27B.folder(tmp_path), tmp_path / "plugin"
    plugin.mkdir()
    engine_plugin(plugin, "drawn_weights")
    with running(configured(ASKED[0], port, model, plugin)) as one:
        log = one.folder / "log/engine.log"
        for way in ASKED:
            begun, before = time.monotonic(), 0
            if way != ASKED[0]:
                before = log.stat().st_size
                one.config_path.write_text(configured(way, port, model, plugin))
                assert one.ctl("reload").returncode == 0
            status = serves(one)
            text = log.read_bytes()[before:].decode(errors="replace")
            print(f"{way}: {status['reported']}", flush=True)
            print(*(line for line in text.splitlines() if "caovan: " in line), sep="\n", flush=True)
            ours = None if way == "off" else "SM75"
            assert status["reported"].get("attention_kernels") == ours
            assert status["reported"].get("lm_head") == ("int8" if way == "all" else None)
            print(f"forecast: {status['forecast']}", flush=True)
            result = Measured()
            measure(Server(one, port, model), result, way)
            result.figures.update(memory(one, status, text))
            result.keep(way)
            print(f"{way}: {time.monotonic() - begun:.0f} s in all", flush=True)
            assert "kernels_refusal" not in one.status()["reported"]
        shown(one, "status")
    found = kept()
    apart = tabled(found)
    for way, one_way in found.items():
        for name, value in one_way.figures.items():
            assert not name.startswith(OFF) or abs(value) <= MAX_OFF, (way, name)
    for way, most in apart.items():
        assert most < CLOSE[way], way
    if {"off", "all"} <= found.keys():
        for length in (length for length in (*SHORT, *LONG) if length >= FASTER):
            for name in ("prefill {}, s", "step at {}, ms", f"step of {TOGETHER} at {{}}, ms"):
                key = name.format(f"{length:,}")
                off = found["off"].figures.get(key, float("inf"))  # it may be left out
                assert found["all"].figures[key] < off, key
