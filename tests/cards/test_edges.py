"""One card: how full cold and warm starts leave it, with CUDA graphs and at the largest load.

Each shape starts twice with nothing compiled and twice with everything, each time planned anew, and
is given as many long requests as it runs at once. None may run short, and the memory of the card
that nobody ever used is at most MAX_UNUSED of it.
CAOVAN_CARDS_GRAPHS=1 CAOVAN_CARDS_ENGINE=PYTHON python3 -m pytest -s tests/cards/test_edges.py
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from caovand.adapters.gpu.nvml import read_gpus
from tests.cards.conftest import CARD
from tests.cards.server import completed
from tests.cards.shapes import CONTEXT, SHAPES
from tests.cards.starts import planned, started
from tests.ports import free_port

EDGES = ("hybrid_moe_mtp2", "dense_every_head", "moe_96_experts", "dense_few_heads", "windows")
STARTS, LONG, TOKENS, MAX_CLIENTS, POLL_S, MAX_UNUSED = 2, 4_096, 64, 128, 0.2, 0.03


def loaded(port: int, requests: int) -> tuple[list[str], int]:
    """What becomes of so many requests at once, and the least memory left meanwhile, in MiB."""
    draw = random.Random(1)
    lengths = [CONTEXT - TOKENS, *[LONG] * requests]
    prompts = [[draw.randrange(5, 500) for _ in range(length)] for length in lengths]
    least, over = read_gpus({})[CARD].free_mib, threading.Event()

    def watch() -> None:
        nonlocal least
        while not over.wait(POLL_S):
            least = min(least, read_gpus({})[CARD].free_mib)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(len(prompts)) as clients:
        outcomes = list(clients.map(lambda prompt: completed(port, prompt, TOKENS), prompts))
    over.set()
    watcher.join()
    return outcomes, least


@pytest.mark.parametrize("name", EDGES)
def test_no_start_runs_short_and_none_leaves_much_of_the_card(name: str, tmp_path: Path) -> None:
    shape, port, unused = SHAPES[name], free_port(), {}
    total = read_gpus({})[CARD].total_mib
    for way in ("cold", "warm"):
        for start in range(STARTS):
            cache = tmp_path / f"cache-{start}"
            found = planned(shape, tmp_path, cache, port)
            assert found.memory is not None
            assert found.memory.fits, found.memory.reason or found.memory.conflicts
            seats = min(int(found.plan.value("max_num_seqs") or 1), MAX_CLIENTS)
            with started(found, tmp_path / f"engine-{way}-{start}.log"):
                outcomes, least = loaded(port, seats)
            unused[f"{way} {start + 1}"] = least / total
            print(
                f"| {name} | {way} {start + 1} | {found.memory.kv_tokens} tokens "
                f"| {seats} + 1 requests | {least} of {total} MiB unused ({least / total:.2%}) |",
                flush=True,
            )  # fmt: skip
            assert set(outcomes) == {"answered"}
    assert max(unused.values()) <= MAX_UNUSED, unused
