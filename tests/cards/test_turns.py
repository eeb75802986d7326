"""One card and two: turns from the prefix cache of a drafting hybrid, against the truth.

csrc/bench/turns.py by the engine's Python, with the plugin's fixes and without, several at a time
on the same cards. CAOVAN_CARDS_SEEDS, such as 0-7, names the conversations: a later run with the
next seeds adds to the one before. Each seed has CAOVAN_CARDS_TURNS turns, and none begins after
CAOVAN_CARDS_TURNS_S seconds. CAOVAN_CARDS_UNIT=16 has states kept inside blocks, too, and
CAOVAN_CARDS_KV is the type of another cache, such as int4_per_token_head.

With a packed cache and without graphs, vLLM alone is not right: the first request after a start
resets the scales in every block, over the states that it just wrote (vllm#51091). There,
CAOVAN_CARDS_ALONE=1 also runs vLLM without the plugin, and asks of it only that it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cards.conftest import CACHE, CARD, EAGER, ENGINE
from tests.daemon_process import ROOT

BENCH = ROOT / "csrc/bench/turns.py"
FIRST, _, LAST = os.environ.get("CAOVAN_CARDS_SEEDS", "0-7").partition("-")
SEEDS = range(int(FIRST), int(LAST or FIRST) + 1)
TURNS = os.environ.get("CAOVAN_CARDS_TURNS", "240")
LIMIT_S = os.environ.get("CAOVAN_CARDS_TURNS_S", "240")
UNIT = os.environ.get("CAOVAN_CARDS_UNIT", "0")
KV = os.environ.get("CAOVAN_CARDS_KV", "auto")
AT_ONCE = {1: 4, 2: 2}
"""By cards: how many engines of each way share them."""
RIGHT_BY_ITSELF = (0, 32)
ERROR, MAX_ERRORS = re.compile(r"Assertion|Traceback|Error\b"), 20
WITH, ALONE = "with the plugin", "without the plugin"
RESETS_SCALES = bool(EAGER) and KV.endswith("_per_token_head")


@dataclass
class Run:
    """Some seeds, in one engine."""

    way: str
    log: Path
    process: subprocess.Popen[bytes]

    def rows(self) -> Iterator[dict[str, Any]]:
        """What came of each seed that has ended, by weights."""
        for line in self.log.read_text(errors="replace").splitlines():
            if line.startswith('{"weights"'):
                yield json.loads(line)


@contextlib.contextmanager
def runs(ways: dict[str, list[str]], count: int, folder: Path) -> Iterator[list[Run]]:
    """All of them at a time on so many cards, ended at the end."""
    env = {
        **os.environ, "CUDA_VISIBLE_DEVICES": str(CARD) if count == 1 else "0,1",
        "TRITON_CACHE_DIR": f"{CACHE}/triton", "VLLM_CACHE_ROOT": f"{CACHE}/turns",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }  # fmt: skip
    graphs = "NONE" if EAGER else "PIECEWISE"
    common = [
        "--turns", TURNS, "--limit", LIMIT_S, "--graphs", graphs, "--cards", str(count),
        "--plain", "--async-scheduling", "--match-unit", UNIT,
        "--kv-cache-dtype", KV,
    ]  # fmt: skip
    begun: list[Run] = []
    with contextlib.ExitStack() as stack:
        for way, words in ways.items():
            for number in range(min(AT_ONCE[count], len(SEEDS))):
                log = folder / f"{way.replace(' ', '-')}-{number}.log"
                seeds = ",".join(map(str, SEEDS[number :: AT_ONCE[count]]))
                words_of_it = [ENGINE, str(BENCH), "--seeds", seeds, *common, *words]
                output: Any = {"stdout": log.open("wb"), "stderr": subprocess.STDOUT}
                process = subprocess.Popen(words_of_it, env=env, **output)
                stack.callback(process.wait)
                stack.callback(process.kill)
                begun.append(Run(way, log, process))
        yield begun


def version() -> tuple[int, int]:
    """The engine's release of vLLM."""
    code = "import importlib.metadata as m; print(m.version('vllm'))"
    done = subprocess.run([ENGINE, "-c", code], capture_output=True, text=True, check=True)
    major, minor, *_ = done.stdout.split(".")
    return int(major), int(minor)


def ways() -> dict[str, list[str]]:
    """The engine's arguments by way of running."""
    if version() < RIGHT_BY_ITSELF or (
        RESETS_SCALES and os.environ.get("CAOVAN_CARDS_ALONE") != "1"
    ):
        return {WITH: []}
    return {WITH: [], ALONE: ["--without-plugin"]}


def summed(way: str, begun: list[Run]) -> None:
    """Print what came of a way's seeds, by weights."""
    found = [row for run in begun if run.way == way for row in run.rows()]
    for weights in ("copy", "random"):
        some = [row for row in found if row["weights"] == weights]
        if not some:
            continue
        sums = [sum(row[name] for row in some) for name in ("turns", "hits", "beyond", "wrong")]
        most = [max(row[name] for row in some) for name in ("farthest", "unit", "cold")]
        seeds = sorted(row["seed"] for row in some)
        print(f"| {way} | {weights} | seeds {seeds} |", *sums, *most, sep=" | ", flush=True)


def told(run: Run) -> None:
    """Print a run's tables and verdicts, its first errors and the end of its log.

    An aborted engine's log ends in C++ frames; only its first errors say what failed.
    """
    lines = run.log.read_text(errors="replace").splitlines()
    tables = [line for line in lines if line.startswith(("|", "pass ", "FAILED "))]
    errors = [line for line in lines if ERROR.search(line)][:MAX_ERRORS]
    print(f"--- {run.log.name}: exit status {run.process.returncode}", flush=True)
    end = lines[-(5 if any(run.rows()) else 40) :]
    print(*tables, "...", *errors, "...", *end, sep="\n", flush=True)


@pytest.mark.parametrize("count", [1, 2])
def test_every_turn_from_the_cache_is_what_computing_it_anew_gives(
    count: int, cards: int, tmp_path: Path
) -> None:
    if cards < count:
        pytest.skip(f"needs {count} cards")
    wanted = ways()
    with runs(wanted, count, tmp_path) as begun:
        shown, over = set[str](), set[str]()
        while len(over) < len(begun):
            time.sleep(1)
            for run in begun:
                if run.log.name not in over and run.process.poll() is not None:
                    over.add(run.log.name)
                    told(run)
            lines = {f"{run.way}: {json.dumps(row)}" for run in begun for row in run.rows()}
            for line in sorted(lines - shown):
                print(line, flush=True)
            shown |= lines
    for way in wanted:
        summed(way, begun)
    assert [run.log.name for run in begun if not any(run.rows())] == []
    right = [run for run in begun if run.way == WITH or not RESETS_SCALES]
    assert [run.log.name for run in right if run.process.returncode] == []
