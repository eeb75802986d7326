"""An 8-bit cache: whose attention reads it, what that takes, and where it is chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import Inventory
from caovand.engines.vllm.memory.estimate import FLASHINFER_MIB
from caovand.engines.vllm.memory.forecast import forecast, load_of
from tests.boxes.models import model
from tests.core.machines import CUDA, H200, inventory, named, plan

LLAMA = model("Llama-3.1-8B")


def activations(machine: Inventory, *words: str) -> float:
    """MiB of a step beside weights, graphs and cache, in a plan of one size."""
    sections: dict[str, Any] = {
        "model": {"max_model_len": 8192},
        "policy": {"max_num_seqs": 2, "max_num_batched_tokens": 2048},
        "engine": {"extra_args": list(words)},
    }
    found = plan(machine, **sections)
    return dict(forecast(found, machine).parts)["activations"]


@pytest.mark.parametrize("card", ["RTX 3090", "A100", "RTX 4090", "RTX 5090"])
def test_flashinfers_workspace_is_counted_wherever_it_reads_the_cache(card: str) -> None:
    machine = inventory(LLAMA, named(card))
    own = activations(machine, "--kv-cache-dtype", "auto")
    assert activations(machine, "--kv-cache-dtype", "fp8") - own == FLASHINFER_MIB
    assert activations(machine, "--attention-backend", "FLASHINFER") - own == FLASHINFER_MIB
    other = ("--kv-cache-dtype", "fp8", "--attention-backend", "TRITON_ATTN")
    assert activations(machine, *other) == own
    assert activations(machine, "--kv-cache-dtype", "int8_per_token_head") == own
    assert activations(machine, "--kv-cache-dtype", "fp8_per_token_head") == own
    without = replace(machine, engine=replace(CUDA, flashinfer=None))
    assert activations(without, "--kv-cache-dtype", "fp8") == own


def test_hoppers_own_attention_reads_an_8_bit_cache() -> None:
    machine = inventory(LLAMA, H200)
    found = plan(machine, engine={"extra_args": ["--kv-cache-dtype", "fp8"]})
    assert not load_of(found, machine).flashinfer
