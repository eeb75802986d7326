"""One card, one daemon, a drafting hybrid: second turns, kernels on and off, kills from outside."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pytest

from caovand.lab.core.fieldtest.trials import FORCE
from tests.cards.conftest import CARD, OUR_KERNELS, configuration, running, serves, shown
from tests.daemon_process import Daemon, free_port
from tests.patience import PATIENCE_S, until

SETTLED_S = 3.0
LONG, NEW, SHORT, DECODED = 25_000, 364, 4_096, 128
SOME, LENGTHS = (7, 300, 1_500, 9_000), range(1_024, 0, -1)
CLOSE = 0.1
"""How far logprobs may be apart: half precision rounds otherwise with other kernels and batches."""
DRAWN = itertools.count(1)
Answers = list[tuple[list[int], list[float]]]


@dataclass(frozen=True)
class Server:
    """A daemon that serves the hybrid on its port."""

    daemon: Daemon
    port: int

    def reloads(self, *args: str, **env: str) -> dict[str, Any]:
        """Serve this plan, by `reload` where another one serves."""
        self.daemon.config_path.write_text(configured(self.port, *args, **env))
        assert self.daemon.ctl("reload").returncode == 0
        return serves(self.daemon)

    def answer(self, prompt: Sequence[int], tokens: int = 1) -> tuple[float, dict[str, Any]]:
        """Seconds until so many tokens are there, and the answer."""
        body = {
            "model": "tiny", "prompt": list(prompt), "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "logprobs": 1, "return_token_ids": True,
        }  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        begun = time.monotonic()
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            found = json.load(answer)
        return time.monotonic() - begun, found["choices"][0]

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """While it generates for a client."""

        def ask() -> None:
            with contextlib.suppress(OSError):  # it is killed meanwhile
                self.answer(drawn(100), 4_000)

        client = threading.Thread(target=ask)
        client.start()
        until(lambda: self._counter("vllm:num_requests_running") > 0, "a request under way")
        yield
        client.join()

    def _counter(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def configured(port: int, *args: str, **env: str) -> str:
    """The configuration that serves the hybrid, with these flags and variables more."""
    words = ["--max-num-seqs", "8", *OUR_KERNELS, *args]
    return configuration("hybrid", port, [CARD], words, {FORCE: "1", **env}, "stable_after_s = 2")


@pytest.fixture(scope="module")
def server(cards: int) -> Iterator[Server]:
    """The daemon that these tests share; the first one waits for its cold start."""
    port = free_port()
    with running(configured(port)) as one:
        yield Server(one, port)


def drawn(length: int, seed: int = 0) -> list[int]:
    """A prompt that no other begins like, or the one of this seed."""
    draw = random.Random(seed or -next(DRAWN))
    return [draw.randrange(5, 500) for _ in range(length)]


def speeds(server: Server, way: str) -> dict[str, float]:
    """Prefill, decode, first and second turn of one way to serve, printed."""
    server.answer(drawn(LONG), 16)  # compiles what is compiled late
    short = median(server.answer(drawn(SHORT))[0] for _ in range(5))
    turns = []
    for _ in range(3):
        prompt = drawn(LONG)
        first, _ = server.answer(prompt)
        second, _ = server.answer([*prompt, *drawn(NEW)])
        turns.append((first, second))
    first, second = (median(seconds) for seconds in zip(*turns, strict=True))
    begun, generated = (server.answer(drawn(512), tokens)[0] for tokens in (1, DECODED + 1))
    found = {
        "prefill 4,096 tok/s": SHORT / short, "prefill 25,000 tok/s": LONG / first,
        "first turn s": first, "second turn s": second,
        "decode tok/s": DECODED / (generated - begun),
    }  # fmt: skip
    print(
        f"{way}: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True
    )
    return found


def answers(server: Server, lengths: Iterable[int], tokens: int) -> Answers:
    """So many tokens after the beginnings of one prompt, each with its logprob."""
    whole = drawn(9_000, seed=1)
    found = (server.answer(whole[:length], tokens)[1] for length in lengths)
    return [(one["token_ids"], one["logprobs"]["token_logprobs"]) for one in found]


def farthest(ours: Answers, theirs: Answers) -> float:
    """The largest difference of logprobs up to where answers part, printed with that."""
    most, equal = 0.0, 0
    for (tokens, sure), (others, as_sure) in zip(ours, theirs, strict=True):
        pairs = zip(tokens, others, strict=True)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        rows = list(zip(sure, as_sure, strict=True))[: same + 1]
        most = max(most, *(abs(one - other) for one, other in rows))
        equal += same
    count = sum(len(tokens) for tokens, _ in ours)
    print(f"{equal} of {count} tokens equal before answers part, logprobs within {most:.4f}")
    return most


def test_the_kernels_answer_as_vllm_does_and_a_second_turn_reads_only_what_is_new(
    server: Server,
) -> None:
    status = serves(server.daemon)
    shown(server.daemon, "status")
    print(json.dumps({name: status[name] for name in ("reported", "forecast", "start")}))
    ours, fast = answers(server, SOME, 48), speeds(server, "kernels on")
    off = server.reloads(CAOVAN_KERNELS="off")
    theirs, slow = answers(server, SOME, 48), speeds(server, "kernels off")
    most = farthest(ours, theirs)
    assert status["reported"]["gdn_kernels"] == "SM75"
    assert "gdn_kernels" not in off["reported"]
    for found in (fast, slow):
        assert found["second turn s"] < found["first turn s"] / 2
    assert most < CLOSE


def kill_core(one: Daemon, before: int) -> float:
    """SIGKILL the engine core, and wait for another engine; seconds until the death is noticed."""
    core = next(process for process in one.tree() if "EngineCor" in process.name)
    os.kill(core.pid, signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: one.status()["state"] != "SERVING", "a death that is noticed")
    noticed = time.monotonic() - killed
    until(lambda: one.status()["restarts"] > before, "a restart")
    return noticed


def test_two_kills_from_outside_cost_a_restart_each_and_nothing_of_the_plan(
    server: Server,
) -> None:
    one = server.daemon
    first = serves(one)
    command = one.commands()[-1]
    assert first["mtp"]
    for when in (server.busy, contextlib.nullcontext):
        until(lambda: one.status()["since_s"] > SETTLED_S, "an engine that is not new")
        begun = time.monotonic()
        with when():
            noticed = kill_core(one, one.status()["restarts"])
        again = serves(one)
        text = again["last_failure"]["text"]
        print(f"noticed after {noticed:.1f} s, serving {time.monotonic() - begun:.1f} s: {text}")
        assert one.commands()[-1] == command
        assert (again["mtp"], again["rungs"]) == (first["mtp"], [])
        assert "vanished" in text
    shown(one, "incidents")


def test_the_prefix_cache_changes_no_answer_at_any_length_and_has_a_price(server: Server) -> None:
    server.reloads(CAOVAN_KERNELS="off")
    cached = answers(server, LENGTHS, 4)
    server.reloads("--no-enable-prefix-caching", CAOVAN_KERNELS="off")
    speed = speeds(server, "kernels off, no prefix cache")
    most = farthest(cached, answers(server, LENGTHS, 4))
    assert speed["second turn s"] > speed["first turn s"] / 2
    assert most < CLOSE
