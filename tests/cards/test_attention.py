"""One card: attention on caovan's kernels and on vLLM's, over caches of three types, in one run.

Meant for vLLM 0.33 and CAOVAN_CARDS_GRAPHS=1. Each type is a test of its own, and has its table as
soon as it is measured.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pytest

from tests.cards.conftest import ENGINE, long_model, running, serves, shown
from tests.cards.server import Server, configured, drawn
from tests.cards.test_serving import SOME, Answers, answers, farthest
from tests.daemon_process import free_port

CONTEXT, NEW, TOGETHER = 135_168, 128, 4
LENGTHS = (4_096, 32_768, 131_072)
WAYS = ("all", "read", "off")
CLOSE = 0.1
"""How far logprobs may be apart: half precision rounds otherwise with other kernels."""


def test_each_kernel_is_within_its_bounds_of_float64(cards: int) -> None:
    done = subprocess.run(
        [ENGINE, "-m", "caovan_vllm_sm75_turbo3.measure.attention", "check"],
        cwd="/", text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    print(done.stdout, flush=True)
    assert done.returncode == 0


def flags(cache: str) -> tuple[str, ...]:
    kind = () if cache == "auto" else ("--kv-cache-dtype", cache)
    return (*kind, "--attention-backend", "TRITON_ATTN")


def decoded(server: Server, prompts: Sequence[list[int]]) -> float:
    """Tokens a second after these prompts, together; the prefix cache has read them before."""

    def seconds(tokens: int) -> float:
        clients = [threading.Thread(target=server.answer, args=(one, tokens)) for one in prompts]
        begun = time.monotonic()
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        return time.monotonic() - begun

    seconds(NEW)
    begun, whole = (median(seconds(tokens) for _ in range(3)) for tokens in (1, NEW + 1))
    return NEW * len(prompts) / (whole - begun)


def speeds(server: Server) -> dict[str, float]:
    """Prefill in seconds, and decoded tokens a second, by length."""
    found: dict[str, float] = {}
    server.answer(drawn(LENGTHS[0]), 16)  # compiles what is compiled late
    for length in LENGTHS:
        prompt = drawn(length)
        found[f"prefill {length:,}, s"] = server.answer(prompt)[0]
        found[f"decode at {length:,}, tok/s"] = decoded(server, [prompt])
    together = [drawn(LENGTHS[1]) for _ in range(TOGETHER)]
    found[f"decode of {TOGETHER} at {LENGTHS[1]:,}, tok/s"] = decoded(server, together)
    return found


@pytest.mark.parametrize(
    ("cache", "ways"),
    [("int4_per_token_head", WAYS), ("int8_per_token_head", WAYS), ("auto", WAYS[1:])],
    ids=("int4", "int8", "fp16"),
)
def test_answers_are_vllms_and_decoding_is_faster(
    cards: int, tmp_path: Path, cache: str, ways: Sequence[str]
) -> None:
    measured: dict[str, dict[str, float]] = {}
    answered: dict[str, Answers] = {}
    port, path = free_port(), long_model(tmp_path, CONTEXT)
    first = configured(port, *flags(cache), path=path, context=CONTEXT, CAOVAN_ATTENTION=ways[0])
    with running(first) as one:
        server = Server(one, port, path, CONTEXT)
        for way in ways:
            status = (
                server.reloads(*flags(cache), CAOVAN_ATTENTION=way) if measured else serves(one)
            )
            reported = status["reported"]
            print(f"{cache}, {way}: {reported}", flush=True)
            assert reported.get("attention_kernels") == (None if way == "off" else "SM75")
            answered[way] = answers(server, SOME, 48)
            measured[way] = speeds(server)
            assert "kernels_refusal" not in one.status()["reported"]
        shown(one, "status")
    print(f"| {cache} | {' | '.join(ways)} | {ways[0]} / off |\n{'| --- ' * (len(ways) + 2)}|")
    for name in measured["off"]:
        row = [measured[way][name] for way in ways]
        print(f"| {name} | {' | '.join(f'{x:.4g}' for x in row)} | {row[0] / row[-1]:.2f} |")
    apart = {}
    for way in ways[:-1]:
        print(f"{cache}, {way} against off: ", end="")
        apart[way] = farthest(answered[way], answered["off"])
    assert max(apart.values()) < CLOSE
    for length in LENGTHS[1:]:  # at the shortest a step is launches and weights
        name = f"decode at {length:,}, tok/s"
        assert measured[ways[0]][name] > measured["off"][name], name
