"""16-bit weights that leave no room: rounded while loading before any go to host memory, and what
those that go there pin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.checkpoint.config_json import describe, invented_weights
from caovand.core.facts.inventory import EngineInfo, Gpu, ModelCard, Weights
from caovand.engines.vllm.memory.shards import MAX_GROWTH, pinned_gib, rounding
from caovand.engines.vllm.planning.decisions import forecast
from tests.boxes.machines import box_with
from tests.boxes.models import model
from tests.core.machines import CUDA, QWEN_27B_AWQ, cards, inventory, made_up, named, plan
from tests.examples import examples

CONFIG = {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 5120,
    "intermediate_size": 17920, "num_hidden_layers": 40, "num_attention_heads": 40,
    "num_key_value_heads": 10, "vocab_size": 100352, "max_position_embeddings": 16384,
    "dtype": "bfloat16",
}  # fmt: skip
CARD = describe(CONFIG)
PHI_4 = replace(CARD, weights=invented_weights(CONFIG, CARD), path="/srv/models/Phi-4")
TURING_22G = cards(1, "NVIDIA GeForce RTX 2080 Ti", (7, 5), 22527)
L40S = cards(1, "NVIDIA L40S", (8, 9), 46068)
MISTRAL = made_up("mistral-small-24b")


def with_tower(name: str, kind: str) -> ModelCard:
    tower = Weights("vision", "sharded", "BF16", 1_150_000_000)
    card = model(name)
    return replace(card, model_type=kind, vision=True, weights=(*card.weights, tower))


VL = with_tower("Qwen3-8B", "qwen3_vl_text")
VLLM_033 = replace(CUDA, version="0.33.0")


@pytest.mark.parametrize(
    ("card", "gpus", "engine", "rounded", "text_only"),
    [
        (VL, cards(1, "NVIDIA RTX A4000", (8, 6), 16_376), CUDA, "fp8", True),
        (VL, cards(1, "NVIDIA RTX A4000", (8, 6), 16_376), VLLM_033, "fp8", None),
        (VL, cards(1, "NVIDIA RTX 4080", (8, 9), 16_376), CUDA, "fp8", None),
        (model("Qwen3.6-27B"), cards(1, "NVIDIA A40", (8, 6), 46_068), CUDA, None, None),
        (model("Qwen3.6-27B"), cards(1, "NVIDIA A40", (8, 6), 46_068), VLLM_033, "fp8", None),
        (model("Qwen3.6-27B"), L40S, CUDA, "fp8", None),
    ],
)
def test_marlin_of_vllm_0_21_gets_whole_tiles_only(
    card: ModelCard,
    gpus: tuple[Gpu, ...],
    engine: EngineInfo,
    rounded: str | None,
    text_only: bool | None,
) -> None:
    sections = {"model": {"max_model_len": 16384}}
    found = plan(inventory(card, gpus, engine), **sections)
    assert found.value("quantization") == rounded
    if rounded:
        assert found.value("language_model_only") == text_only
    if text_only:
        assert "Marlin's tiles" in found.settings["language_model_only"].reason
        (told,) = [text for text in found.warnings if text.startswith("images are off")]
        assert "[model] text_only = false" in told
    elif rounded:
        assert not any(text.startswith("images are off") for text in found.warnings)
    if text_only:
        seeing = plan(inventory(card, gpus, engine), model={"text_only": False})
        assert seeing.value("quantization") is None


def test_models_that_compute_in_float32_are_not_rounded() -> None:
    gemma = replace(PHI_4, model_type="gemma3_text")
    assert plan(inventory(gemma, TURING_22G)).value("quantization") is None


@pytest.mark.parametrize(
    ("card", "gpus"),
    [(PHI_4, named("RTX 3090")), (MISTRAL, L40S), (PHI_4, TURING_22G)],
)
def test_weights_are_rounded_before_any_go_to_host_memory(card: Any, gpus: tuple[Gpu, ...]) -> None:
    machine = inventory(card, gpus)
    found = plan(machine)
    assert found.value("quantization") == "fp8"
    assert found.value("cpu_offload_gb") is None
    assert found.value("enforce_eager") is None
    assert found.value("max_model_len") == card.max_model_len
    assert found.value("max_num_seqs") >= 4
    assert found.value("kv_cache_dtype") == ("fp8" if gpus is TURING_22G else None)
    assert forecast(found, machine).fits
    (told,) = [text for text in found.warnings if "quantised to fp8 while loading" in text]
    assert f"{card.path.rpartition('/')[2]}-FP8" in told


@pytest.mark.parametrize(
    ("card", "gpus", "words"),
    [
        (PHI_4, named("A100 40 GB"), []),  # it fits as it is
        (PHI_4, named("RTX 3090"), ["--cpu-offload-gb", "8"]),
        (model("Qwen3.6-27B-GPTQ-Int4"), named("RTX 3090"), []),
    ],
)
def test_and_nowhere_else(card: Any, gpus: tuple[Gpu, ...], words: list[str]) -> None:
    found = plan(inventory(card, gpus), engine={"extra_args": words})
    assert found.value("quantization") is None


def test_a_neighbour_is_no_reason_to_round() -> None:
    busy = tuple(replace(gpu, free_mib=gpu.free_mib - 9000) for gpu in named("A100 40 GB"))
    assert plan(inventory(PHI_4, busy)).value("quantization") is None


@examples(60)
@given(
    hidden=st.integers(256, 12288),
    inner=st.integers(256, 40000),
    ranks=st.sampled_from([1, 2, 4, 8]),
    offload=st.floats(0, 200),
)
def test_copies_are_pinned_in_powers_of_two(
    hidden: int, inner: int, ranks: int, offload: float
) -> None:
    card = replace(PHI_4, hidden_size=hidden, intermediate_size=inner)
    assert 1 <= rounding(card, ranks) < MAX_GROWTH
    assert offload * ranks <= pinned_gib(offload, card, ranks) <= MAX_GROWTH * offload * ranks
    whole = replace(card, hidden_size=4096, intermediate_size=16384, heads=32, kv_heads=16)
    assert rounding(replace(whole, head_dim=128), 1) == 1.0


def test_what_the_host_cannot_pin_is_not_offloaded() -> None:
    machine = inventory(model("Qwen3.6-27B-FP8"), named("RTX 3090"))

    def offloaded(ram_mib: int) -> float:
        host = replace(machine.host, ram_mib=ram_mib, available_mib=ram_mib - 2048)
        return plan(replace(machine, host=host)).value("cpu_offload_gb") or 0.0

    much = offloaded(65536)
    small_mib = int(much * 1024 / 0.8) + 1024  # room for the weights, and not for their copies
    assert pinned_gib(much, machine.model, 1) * 1024 > small_mib * 0.8
    less = offloaded(small_mib)
    assert less < much
    assert pinned_gib(less, machine.model, 1) * 1024 <= small_mib * 0.8


def test_advice_names_the_checkpoint_to_get() -> None:
    floats = replace(QWEN_27B_AWQ, quantization=None, group_size=0, path="/srv/Qwen3.6-27B-BF16")
    whole = replace(floats, weights=model("Qwen3.6-27B").weights)
    found = plan(inventory(whole, named("RTX 3090")))
    (told,) = [text for text in found.warnings if "host memory" in text]
    assert "Qwen3.6-27B-AWQ or Qwen3.6-27B-GPTQ-Int4" in told


def test_a_short_context_names_the_checkpoint_that_brings_more() -> None:
    own = model("Qwen3-30B-A3B-AWQ")  # 30 billion parameters, here in 8 bits
    weights = tuple(
        replace(one, size=int(one.size * 1.98), dtype="F8_E4M3") if one.part == "experts" else one
        for one in own.weights
    )
    found = plan(box_with("5090", replace(own, weights=weights, quantization="fp8", gptq=None)))
    assert found.value("max_model_len") < 8192
    assert any(
        "these weights leave a short context: use a 4-bit" in text for text in found.warnings
    )
