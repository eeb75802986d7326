"""One card: attention on caovan's kernels and on vLLM's, over caches of three types, in one run.

Meant for vLLM 0.33 and CAOVAN_CARDS_GRAPHS=1. Each type is a test of its own, and has its table as
soon as it is measured.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import pytest

from tests.cards.conftest import ENGINE, long_model, running, serves, shown
from tests.cards.server import Server, configured, drawn, request
from tests.cards.test_serving import SOME, Answers, answers, farthest
from tests.patience import PATIENCE_S
from tests.ports import free_port

CONTEXT, NEW, TOGETHER = 135_168, 48, 4
LENGTHS = (4_096, 32_768, 131_072)
WAYS = ("all", "decode", "off")
CLOSE = 0.1
"""How far logprobs may be apart: half precision rounds otherwise with other kernels."""
BESIDE = 16_384
"""Tokens of a prompt that is read while another request verifies behind the longest context."""


@pytest.mark.parametrize("program", ["attention", "prefill_attention"])
def test_each_kernel_is_within_its_bounds_of_float64(cards: int, program: str) -> None:
    measured(program, "check")


@pytest.mark.parametrize("program", ["attention", "prefill_attention"])
def test_every_kernel_gives_the_same_bits_20_000_times(cards: int, program: str) -> None:
    measured(program, "bits")


@pytest.mark.parametrize("program", ["attention", "prefill_attention"])
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_sanitizer_finds_nothing(cards: int, program: str, tool: str) -> None:
    """Needs compute-sanitizer of a toolkit: the one from PyPI starts no program."""
    named = os.environ.get("CAOVAN_CARDS_SANITIZER", "compute-sanitizer")
    found = shutil.which(named) or pytest.skip(f"no {named}; CAOVAN_CARDS_SANITIZER names one")
    only = ("--kernel-name", "kernel_substring=caovan")
    measured(program, "once", found, "--tool", tool, *only, "--error-exitcode", "9")


def measured(program: str, what: str, *before: str) -> None:
    done = subprocess.run(
        [*before, ENGINE, "-m", f"caovan_vllm_sm75_turbo3.measure.{program}", what],
        cwd="/", text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        # an address outside a tensor must not be another tensor's
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if before else None,
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

    seconds(16)
    begun, whole = (median(seconds(tokens) for _ in range(3)) for tokens in (1, NEW + 1))
    return NEW * len(prompts) / (whole - begun)


def speeds(server: Server) -> dict[str, float]:
    """Prefill in seconds, and decoded tokens a second, by length; a prompt beside a request."""
    found: dict[str, float] = {}
    server.answer(drawn(LENGTHS[0]), 16)  # compiles what is compiled late
    for length in LENGTHS:
        prompt = drawn(length)
        found[f"prefill {length:,}, s"] = server.answer(prompt)[0]
        if length > LENGTHS[0]:
            turn = f"second turn of 300 tokens behind {length:,}, s"
            found[turn] = median(server.answer(prompt + drawn(300))[0] for _ in range(3))
            found[f"decode at {length:,}, tok/s"] = decoded(server, [prompt])
    with answered_meanwhile(server, prompt):
        found[f"prefill {BESIDE:,} beside a request at {length:,}, s"] = server.answer(
            drawn(BESIDE)
        )[0]
    together = [drawn(LENGTHS[0]) for _ in range(TOGETHER)]
    found[f"decode of {TOGETHER} at {LENGTHS[0]:,}, tok/s"] = decoded(server, together)
    return found


@contextlib.contextmanager
def answered_meanwhile(server: Server, prompt: list[int], tokens: int = 2_000) -> Iterator[None]:
    """While a request behind this prompt generates; the client disconnects at the end."""
    asked = request(server.port, prompt, tokens, stream=True)
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        assert answer.readline().startswith(b"data: {")
        yield
        assert answer.readline(), "it ended before"


@pytest.mark.parametrize(
    ("cache", "ways"),
    [("int4_per_token_head", WAYS), ("int8_per_token_head", WAYS[::2]), ("auto", WAYS[::2])],
    ids=("int4", "int8", "fp16"),
)
def test_answers_are_vllms_and_everything_long_is_faster(
    cards: int, tmp_path: Path, cache: str, ways: Sequence[str]
) -> None:
    found: dict[str, dict[str, float]] = {}
    answered: dict[str, Answers] = {}
    mixed: dict[str, Answers] = {}
    port, path = free_port(), long_model(tmp_path, CONTEXT)
    first = configured(port, *flags(cache), path=path, context=CONTEXT, CAOVAN_ATTENTION=ways[0])
    with running(first) as one:
        server = Server(one, port, path, CONTEXT)
        for way in ways:
            status = server.reloads(*flags(cache), CAOVAN_ATTENTION=way) if found else serves(one)
            reported = status["reported"]
            print(f"{cache}, {way}: {reported}", flush=True)
            assert reported.get("attention_kernels") == (None if way == "off" else "SM75")
            answered[way] = answers(server, SOME, 48)
            with answered_meanwhile(server, drawn(3_000)):
                mixed[way] = answers(server, SOME, 48)
            found[way] = speeds(server)
            assert "kernels_refusal" not in one.status()["reported"]
        shown(one, "status")
    print(f"| {cache} | {' | '.join(ways)} | {ways[0]} / off |\n{'| --- ' * (len(ways) + 2)}|")
    for name in found["off"]:
        row = [found[way][name] for way in ways]
        print(f"| {name} | {' | '.join(f'{x:.4g}' for x in row)} | {row[0] / row[-1]:.2f} |")
    apart = {}
    for way in ways:
        for what, those in (("alone", answered), ("beside a request", mixed)):
            print(f"{cache}, {way}, {what}, against off alone: ", end="")
            apart[way, what] = farthest(those[way], answered["off"])
    assert max(apart.values()) < CLOSE
    assert found["all"][f"prefill {LENGTHS[-1]:,}, s"] < found["off"][f"prefill {LENGTHS[-1]:,}, s"]
    name = f"decode at {LENGTHS[-1]:,}, tok/s"  # shorter ones are launches and weights
    assert found["all"][name] > found["off"][name]
