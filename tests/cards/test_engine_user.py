"""Engines of a user of their own, as the package has them: as fast, on two cards too, gone at last.

Root makes both users and gives the daemon the unit's rights. Where NVML shows no card, the CPU
build serves the tiny models of `make demo`, which rehearses all but the cards.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from caovand.adapters.confinement import launch
from caovand.adapters.gpu.nvml import read_gpus
from caovand.lab.core.fieldtest.trials import FORCE
from tests.cards.conftest import (
    CACHE,
    CARD,
    ENGINE,
    MODELS,
    OUR_KERNELS,
    configuration,
    model,
    serves,
)
from tests.cards.server import Server, drawn
from tests.cards.test_confinement import state
from tests.daemon_process import ROOT, Daemon, daemon
from tests.patience import until
from tests.ports import free_port
from tests.service_users import Users, enterable, service_users

USER, ALONE = "user and confined", "neither"
PAIRS = 31
"""Requests to each of both engines, in turn."""
TOKENS, SHORT = 400, 100
MAX_COST = 0.03
TINY = ROOT / ".caovan/models/dense"
OWN_CACHE = CACHE.with_name(f"{CACHE.name}-engine-user")
NCCL = ("--disable-custom-all-reduce",)


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    """Both users, who can reach the engine and the model, and have a cache."""
    with service_users() as made, enterable(Path(sys.executable), Path(ENGINE), ROOT, MODELS):
        if not OWN_CACHE.exists():
            made.make_cache(OWN_CACHE, CACHE)
        else:
            made.own(OWN_CACHE)  # of the users of an earlier run
        yield made


def configured(port: int, count: int, args: Sequence[str], confine: bool) -> str:
    """Serve the hybrid on so many cards, or a tiny model on the CPU build."""
    gpus = [gpu.index for gpu in read_gpus({})]
    engine = f"confine = {str(confine).lower()}"
    if not gpus:
        if not (tiny := MODELS / "tiny").exists():
            shutil.copytree(TINY, tiny)
        subprocess.run(["chmod", "-R", "a+rX", str(tiny)], check=True)
        words = ["--kv-cache-memory-bytes", "64M", "--tensor-parallel-size", str(count), *args]
        env = {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, range(count)))}  # a core a rank
        return configuration("dense", port, (), words, env, engine=engine, path=tiny, context=2048)
    if len(gpus) < count:
        pytest.skip(f"needs {count} cards")
    subprocess.run(["chmod", "-R", "a+rX", str(model("hybrid"))], check=True)
    words = ["--max-num-seqs", "8", "--tensor-parallel-size", str(count), *OUR_KERNELS, *args]
    env = {FORCE: "1", "TRITON_CACHE_DIR": f"{OWN_CACHE}/triton"}
    # Random weights accept no draft: a slow engine would be started again without any. Others use
    # the cards meanwhile.
    policy = "[policy]\nmtp = 0\ngpu_memory_utilization = 0.4"
    words += ["--kv-cache-memory-bytes", "8G"]
    own = gpus[:count] if count > 1 else [CARD]
    return configuration("hybrid", port, own, words, env, policy, engine=engine)


@contextmanager
def running(users: Users, way: str, count: int, args: Sequence[str] = ()) -> Iterator[Server]:
    """A daemon that serves this way and leaves none of its processes."""
    port, own = free_port(), way == USER
    rights = users.daemons_rights() if own else users.engines_rights()
    owner = (users.daemon if own else users.engine).pw_uid
    config = configured(port, count, args, own)
    with daemon(config, users.environ(OWN_CACHE), rights, owner=owner) as one:
        found = serves(one)
        print(f"{way}: rungs {found['rungs']}, last failure {found['last_failure']}", flush=True)
        whose = {process.name: users.runs(process.pid) for process in one.tree()}
        assert set(whose.values()) == {True}, whose
        first = one.status()["engine_pid"]
        print(
            f"{way}: engine {state(first)}, of {one.status()['daemon']['engine_user']}", flush=True
        )
        assert bool(one.status()["daemon"]["engine_user"]) is own
        if launch.landlock_abi() >= launch.MIN_ABI:
            assert ("Seccomp:\t2" in state(first)) is own
        yield Server(one, port)
        assert one.ctl("stop").returncode == 0
        until(lambda: not one.tree(), "an engine that has ended")
        assert one.stop() == 0


def rate(server: Server, tokens: int) -> float:
    """Tokens a second of one request, without the time its prompt takes."""
    prompt = drawn(32)
    prefilled, _ = server.answer(prompt)
    seconds, choice = server.answer(prompt, tokens + 1)
    assert len(choice["token_ids"]) == tokens + 1
    return tokens / (seconds - prefilled)


def test_an_engine_of_its_own_user_is_as_fast_and_leaves_nothing(users: Users) -> None:
    """Both engines serve at the same time and are asked in turn. What else the machine does only
    slows a request, some by a half, so the fastest of each are compared."""
    with running(users, USER, 1) as own, running(users, ALONE, 1) as other:
        for server in (own, other):
            server.answer(drawn(32), TOKENS)
        pairs = [(rate(own, TOKENS), rate(other, TOKENS)) for _ in range(PAIRS)]
    for name, found in zip((USER, ALONE), zip(*pairs, strict=True), strict=True):
        print(f"| {name} | {median(found):.1f} tok/s | {min(found):.1f} to {max(found):.1f} |")
    best = [max(found) for found in zip(*pairs, strict=True)]
    print(f"| {USER} / {ALONE} | {best[0] / best[1]:.4f}, of the fastest |", flush=True)
    assert users.left() == []
    assert best[0] >= best[1] * (1 - MAX_COST)


@pytest.mark.parametrize("args", [NCCL, ()], ids=["nccl", "own_all_reduce"])
def test_two_cards_lose_a_rank_and_heal_as_that_user(users: Users, args: Sequence[str]) -> None:
    with running(users, USER, 2, args) as server:
        one = server.daemon
        print(all_reduce(one), flush=True)
        print(f"| two cards {args} | {rate(server, SHORT):.1f} tok/s |", flush=True)
        restarts = one.status()["restarts"]
        rank = next(process for process in one.tree() if "Worker" in process.name)
        os.kill(rank.pid, signal.SIGKILL)
        until(lambda: one.status()["restarts"] > restarts, "a restart")
        again = serves(one)
        assert again["last_failure"]["failure"] != "unknown", again["last_failure"]
        assert again["rungs"] == [], "it is the same plan"
        server.answer(drawn(32), 8)
    assert users.left() == []


def all_reduce(one: Daemon) -> list[str]:
    """What the engine's log has of its all-reduce."""
    argv: list[Any] = one.commands()[-1]
    log = (one.folder / "log/engine.log").read_text(errors="replace").splitlines()
    words = ("all-reduce", "all_reduce", "allreduce", "AllReduce", "symm_mem", "NCCL", "nccl")
    said = [line[-300:] for line in log if any(word in line for word in words)]
    return [f"--disable-custom-all-reduce: {NCCL[0] in argv}", *said[:20]]
