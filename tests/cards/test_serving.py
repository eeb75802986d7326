"""One card, one daemon, a drafting hybrid: second turns, kernels on and off, kills from outside."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator

import pytest

from tests.cards.conftest import running, serves, shown
from tests.cards.server import LONG, Server, configured, drawn, speeds
from tests.daemon_process import Daemon
from tests.patience import until
from tests.ports import free_port

SETTLED_S = 3.0
FIRST, SECOND = f"first turn {LONG:,} s", f"second turn {LONG:,} s"
SOME, LENGTHS = (7, 300, 1_500, 9_000), range(1_024, 0, -1)
CLOSE = 0.1
"""How far logprobs may be apart: half precision rounds otherwise with other kernels and batches."""
Answers = list[tuple[list[int], list[float]]]


@pytest.fixture(scope="module")
def server(cards: int) -> Iterator[Server]:
    """The daemon that these tests share; the first one waits for its cold start."""
    port = free_port()
    with running(configured(port)) as one:
        yield Server(one, port)


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
        assert found[SECOND] < found[FIRST] / 2
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


@pytest.mark.parametrize("kernels", ["off", "all"])
def test_the_prefix_cache_changes_no_answer_at_any_length_and_has_a_price(
    server: Server, kernels: str
) -> None:
    server.reloads(CAOVAN_KERNELS=kernels)
    cached = answers(server, LENGTHS, 4)
    server.reloads("--no-enable-prefix-caching", CAOVAN_KERNELS=kernels)
    speed = speeds(server, f"kernels {kernels}, no prefix cache")
    most = farthest(cached, answers(server, LENGTHS, 4))
    assert speed[SECOND] > speed[FIRST] / 2
    assert most < CLOSE
