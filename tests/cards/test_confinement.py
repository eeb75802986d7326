"""One card and two: what [engine] confine costs, and that the engine works in it.

Meant for CAOVAN_CARDS_GRAPHS=1. The same plan is measured confined, not confined and confined
again: what the first and the last differ by is noise.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.confinement import launch
from caovand.adapters.system import processes
from caovand.lab.core.bench import compare
from caovand.lab.core.fieldtest.trials import FORCE
from tests.cards.conftest import CARD, OUR_KERNELS, configuration, engine_plugin, running, serves
from tests.daemon_process import Daemon
from tests.patience import until
from tests.ports import free_port

BENCH = ("--prompts", "512,4096", "--at-once", "1,8", "--rounds", "5", "--tokens", "64")
MAX_COST = 0.05
"""Of decoding alone; the host takes most of such a small model's step."""
SHARED = Path("/dev/shm")
NCCL = ("--disable-custom-all-reduce",)


def state(pid: int) -> str:
    """What the kernel says of a process' confinement."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return ", ".join(line for line in lines if line.startswith(("NoNewPrivs", "Seccomp:")))


def restarted(one: Daemon, text: str) -> dict[str, Any]:
    """Serve with this configuration, by a new engine."""
    before = one.status()["generation"]
    one.config_path.write_text(text)
    assert one.ctl("reload").returncode == 0
    assert one.ctl("restart").returncode == 0
    until(lambda: one.status()["generation"] > before, "another engine")
    return serves(one)


def measured(one: Daemon, way: str, plugin: Path) -> dict[str, Any]:
    """The bench's result of what serves now, after what its processes may open."""
    found = {one.name: one.read_text() for one in sorted(plugin.glob("reached-*"))}
    for name in found:
        (plugin / name).unlink()
    core = next(process for process in one.tree() if "EngineCor" in process.name)
    print(f"{way}: core {state(core.pid)}; logs: {found}", flush=True)
    done = one.ctl("bench", "--json", *BENCH)
    assert done.returncode == 0, done.stderr
    document = dict(json.loads(done.stdout))
    for cell in document["cells"]:
        names = ("prompt", "at_once", "decode_tokens_per_s", "prefill_tokens_per_s")
        rounds = [[each[name] for name in names[2:]] for each in cell["rounds"]]
        print(f"{way}: {cell['prompt']} x {cell['at_once']}: {rounds}", flush=True)
    return {**document, "opened": {word for text in found.values() for word in text.split(", ")}}


def compared(name: str, a: dict[str, Any], b: dict[str, Any]) -> float:
    """Print both side by side; by how much decoding one request differs at most."""
    worst = 0.0
    for row in compare.rows(a, b):
        chance = row.chance and round(row.chance, 3)
        print(
            f"| {name} | {row.prompt} | {row.at_once} | {row.figure} | {row.a.median:.4g}"
            f" | {row.b.median:.4g} | {row.change:+.1%} | {chance} | {row.verdict} |",
            flush=True,
        )
        if row.figure == "decode_tokens_per_s":
            worst = max(worst, abs(row.change))
    return worst


@pytest.mark.parametrize(
    ("count", "args"), [(1, ()), (2, ()), (2, NCCL)], ids=["one_card", "two_cards", "two_by_nccl"]
)
def test_a_confined_engine_is_as_fast_as_another_and_leaves_nothing(
    count: int, args: tuple[str, ...], cards: int, tmp_path: Path
) -> None:
    if cards < count:
        pytest.skip(f"needs {count} cards")
    abi, here = launch.landlock_abi(), state(os.getpid())
    print(f"{platform.release()}: Landlock {abi}; this process: {here}", flush=True)
    plugin = engine_plugin(tmp_path, "reaching")
    gpus = [CARD] if count == 1 else list(range(count))
    words = ["--max-num-seqs", "8", "--tensor-parallel-size", str(count), *OUR_KERNELS, *args]
    env = {FORCE: "1", "PYTHONPATH": str(plugin), "REACHING": tempfile.gettempdir()}
    port, before = free_port(), set(SHARED.iterdir())
    on, off = (
        configuration("hybrid", port, gpus, words, env, engine=f"confine = {value}")
        for value in ("true", "false")
    )
    with running(on) as one:
        serves(one)
        print(one.ctl("doctor").stdout, flush=True)
        first = measured(one, "confined", plugin)
        restarted(one, off)
        free = measured(one, "not confined", plugin)
        compared("not confined / confined", first, free)
        restarted(one, on)
        again = measured(one, "confined again", plugin)
        noise = compared("confined again / confined", first, again)
        cost = compared("confined again / not confined", free, again)
        print(f"decode: {cost:.1%} apart, between equal ones {noise:.1%}", flush=True)
        group = {process.pid for process in one.tree()}
        assert one.ctl("stop").returncode == 0
        until(lambda: not one.tree(), "an engine that has ended")
        left = group & {process.pid for process in processes.all_processes() if not process.zombie}
        assert not left
    left_there = sorted(file.name for file in set(SHARED.iterdir()) - before)
    print(f"in /dev/shm, also of other daemons: {left_there}", flush=True)
    assert "EACCES" not in free["opened"]
    if abi >= launch.MIN_ABI:
        assert "EACCES" in first["opened"] & again["opened"]
    assert cost <= max(MAX_COST, 2 * noise)
