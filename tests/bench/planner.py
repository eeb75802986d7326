"""`python -m tests.bench.planner`: the cost of planning, for a 60-shard model of sparse files."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from caovand.adapters.model_folder import read_model
from caovand.core.facts.inventory_file import render
from tests.core.machines import CUDA, HOST, inventory, plan, turing
from tests.patience import eventually
from tests.real_engine import ENGINE

SHARDS, TENSORS = 60, 1000
ROUNDS = 20


def make_model(folder: Path) -> None:
    """A mixture-of-experts checkpoint of many shards; its data are holes."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "num_hidden_layers": SHARDS, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "max_position_embeddings": 40960,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    table: dict[str, str] = {}
    for shard in range(1, SHARDS + 1):
        name = f"model-{shard:05}-of-{SHARDS:05}.safetensors"
        size = 2048 * 768 * 2
        header = {
            f"model.layers.{shard - 1}.mlp.experts.{n}.up_proj.weight": {
                "dtype": "BF16", "shape": [2048, 768], "data_offsets": [n * size, (n + 1) * size],
            }
            for n in range(TENSORS)
        }  # fmt: skip
        text = json.dumps(header).encode()
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + size * TENSORS)
        table.update(dict.fromkeys(header, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))


def seconds(work: Callable[[], object], rounds: int = 1) -> float:
    """How long one round takes, the best of three tries."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(rounds):
            work()
        best = min(best, (time.perf_counter() - start) / rounds)
    return best


def verb(*words: str, **environ: str) -> None:
    """Run caovanctl as people do."""
    subprocess.run(
        [sys.executable, "-m", "caovand.cli.main", *words],
        env={**os.environ, **environ},
        stdout=subprocess.DEVNULL,
        check=False,
    )


def first_doctor(place: Path) -> float:
    """Seconds that the doctor takes where the engine was never asked before."""
    config = place / "caovan.toml"
    config.write_text(f'[engine]\npython = "{ENGINE}"\n')
    cache = place / "cache"
    start = time.perf_counter()
    verb("doctor", "--config", str(config), CACHE_DIRECTORY=str(cache))
    took = time.perf_counter() - start
    # The import goes on behind it and would slow what is measured next.
    eventually(lambda: not ENGINE.exists() or list(cache.glob("*.json")), limit_s=120)
    return took


def main() -> None:
    """Measure and print the table."""
    with tempfile.TemporaryDirectory(prefix="caovan-bench-") as place:
        folder = Path(place) / "model"
        folder.mkdir()
        make_model(folder)
        saved = Path(place) / "machine.json"
        saved.write_text(json.dumps(render(turing(2), HOST, CUDA)))
        machine = inventory()
        words = (str(folder), "--inventory", str(saved), "--json")
        rows = (
            ("read a model of 60 shards", seconds(lambda: read_model(str(folder))), "0.5 s"),
            ("make a plan", seconds(lambda: plan(machine), ROUNDS), ""),
            ("caovanctl plan", seconds(lambda: verb("plan", *words)), ""),
            ("caovanctl doctor, engine never asked", first_doctor(Path(place)), "5 s"),
            ("caovanctl doctor", seconds(lambda: verb("doctor", *words[1:], words[0])), "5 s"),
        )
    for what, took, goal in rows:
        print(f"{what:<48} {took * 1000:>12.1f} ms   {goal}")


if __name__ == "__main__":
    main()
