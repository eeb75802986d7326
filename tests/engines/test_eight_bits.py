"""An 8-bit cache: whose attention reads it, what that takes, and where it is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import EngineInfo, Gpu, Inventory, ModelCard
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import LadderRules, decide
from caovand.core.plan import Plan
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.healing.switches import kv_dtype_small
from caovand.engines.vllm.memory.candidate import FLASHINFER_MIB
from caovand.engines.vllm.memory.settings import candidate_of_plan
from caovand.engines.vllm.planning.decisions import conflicts, forecast
from caovand.engines.vllm.sizing.choice import ENOUGH_EXACT
from tests.boxes.models import model
from tests.core.machines import CUDA, H200, QWEN_27B_AWQ, cards, inventory, named, plan, turing

LLAMA = model("Llama-3.1-8B")
ASKED = replace(CUDA, python_version="3.12.1", cuda="13.0")
"""An engine that was asked what it has: neither ready kernels nor a compiler."""
WITH_NVCC = replace(ASKED, nvcc="/usr/local/cuda/bin/nvcc")
WITHOUT_FLASHINFER = replace(ASKED, flashinfer=None)
B200 = (Gpu(0, "NVIDIA B200", (10, 0), 183_359, 24_000),)


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


@pytest.mark.parametrize("card", [LLAMA, model("gpt-oss-20b")], ids=lambda card: card.model_type)
def test_on_sm100_attention_is_flashinfers_whatever_the_cache(card: ModelCard) -> None:
    machine = inventory(card, tuple(replace(gpu, free_mib=gpu.total_mib) for gpu in B200))
    triton = activations(machine, "--attention-backend", "TRITON_ATTN")
    assert activations(machine) - triton == FLASHINFER_MIB
    assert activations(machine, "--kv-cache-dtype", "fp8") - triton == FLASHINFER_MIB
    compressed = replace(machine, model=replace(card, latent=576))
    assert activations(compressed) == activations(compressed, "--attention-backend", "TRITON_ATTN")


def test_hoppers_own_attention_reads_an_8_bit_cache() -> None:
    machine = inventory(LLAMA, H200)
    found = plan(machine, engine={"extra_args": ["--kv-cache-dtype", "fp8"]})
    assert not candidate_of_plan(found, machine).kernels.flashinfer


@pytest.mark.parametrize(
    ("card", "engine", "chosen"),
    [
        ("RTX 3090", ASKED, False),
        ("RTX 3090", WITH_NVCC, True),
        ("RTX 3090", replace(ASKED, jit_cache="0.6.8"), True),
        ("RTX 3090", WITHOUT_FLASHINFER, False),
        ("RTX 4090", ASKED, False),
        ("RTX 4090", WITH_NVCC, True),
        ("RTX 4090", WITHOUT_FLASHINFER, True),
        ("RTX 5090", ASKED, False),
        ("B200", ASKED, False),
        ("B200", WITH_NVCC, True),
        ("H200", ASKED, True),
    ],
)
def test_it_is_chosen_only_where_attention_that_reads_it_can_start(
    card: str, engine: EngineInfo, chosen: bool
) -> None:
    known = {"B200": B200, "H200": tuple(replace(gpu, free_mib=23_000) for gpu in H200)}
    gpus = known.get(card) or named(card)
    free_mib = 24_000 if card in known else 22_500
    gpus = tuple(replace(gpu, free_mib=min(gpu.free_mib, free_mib)) for gpu in gpus)
    found = plan(inventory(QWEN_27B_AWQ, gpus, engine))
    assert (found.value("kv_cache_dtype") == "fp8") == chosen


GEMMA_3 = {"architecture": "Gemma3ForConditionalGeneration", "model_type": "gemma3_text"}
PALIGEMMA = {"architecture": "PaliGemmaForConditionalGeneration", "model_type": "gemma"}
MOLMO = {"architecture": "Molmo2ForConditionalGeneration", "model_type": "molmo2_text"}


@pytest.mark.parametrize("kind", [GEMMA_3, PALIGEMMA, MOLMO], ids=lambda kind: kind["model_type"])
def test_where_images_attend_both_ways_flashinfer_is_not_counted_on(kind: dict[str, str]) -> None:
    both_ways = replace(LLAMA, **kind)
    for card, chosen in (("RTX 3090", None), ("RTX 4090", "fp8")):
        gpus = tuple(replace(gpu, free_mib=19_000) for gpu in named(card))
        machine = inventory(both_ways, gpus, WITH_NVCC)
        found = plan(machine)
        assert found.value("kv_cache_dtype") == chosen
        assert not candidate_of_plan(found, machine).kernels.flashinfer
        plain = plan(inventory(replace(LLAMA), gpus, WITH_NVCC))
        assert plain.value("kv_cache_dtype") == "fp8"
    paired = plan(inventory(both_ways, turing(2), WITH_NVCC))
    assert paired.value("attention_backend") == "TRITON_ATTN"
    assert paired.value("kv_cache_dtype") is None


@pytest.mark.parametrize(
    ("card", "chosen"),
    [
        (cards(1, "NVIDIA GeForce RTX 4080", (8, 9), 16_376), "fp8"),
        (cards(1, "NVIDIA GeForce RTX 5080", (12, 0), 16_303), "fp8"),
        (cards(1, "NVIDIA RTX A4000", (8, 6), 16_376), None),
        ((replace(H200[0], free_mib=18_500),), None),
    ],
    ids=lambda one: one[0].name if isinstance(one, tuple) else str(one),
)
def test_where_sinks_are_tritons_it_reads_eight_bits_that_leave_room_for_graphs(
    card: tuple[Gpu, ...], chosen: str | None
) -> None:
    found = plan(inventory(model("gpt-oss-20b"), card), policy={"workload": "long"})
    assert found.value("kv_cache_dtype") == chosen
    if chosen:
        config = found.settings["compilation_config"]
        assert config.value["max_cudagraph_capture_size"] == 2 * found.value("max_num_seqs")
        assert "none for steps of more than" in config.reason
        assert found.value("max_model_len") > 32_768


def test_with_room_graphs_are_as_large_as_vllm_makes_them() -> None:
    found = plan(inventory(model("gpt-oss-20b"), named("RTX 4090")))
    assert found.value("compilation_config") == {"cudagraph_mode": "FULL_AND_PIECEWISE"}
    flags = ["--compilation-config", '{"cudagraph_mode": "PIECEWISE"}']
    tight = inventory(model("gpt-oss-20b"), cards(1, "NVIDIA GeForce RTX 4080", (8, 9), 16_376))
    kept = plan(tight, engine={"extra_args": flags})
    assert kept.value("compilation_config") == {"cudagraph_mode": "PIECEWISE"}


@pytest.mark.parametrize("gpus", [named("T4"), named("RTX 4060"), named("H100")])
def test_what_is_pooled_keeps_the_caches_own_type(gpus: tuple[Gpu, ...]) -> None:
    found = plan(inventory(model("Qwen3-Reranker-4B"), gpus), policy={"workload": "batch"})
    assert found.value("kv_cache_dtype") is None


def test_whole_graphs_that_0_21_cuts_are_not_promised_silently() -> None:
    machine = inventory(gpus=named("RTX 3090", 2), engine=WITH_NVCC)
    typed = {"cuda_graphs": "full_and_piecewise", "kv_cache_dtype": "fp8", "mtp": 3}
    flag = ["--compilation-config", '{"cudagraph_mode": "FULL_DECODE_ONLY"}']

    def warned(machine: Inventory, words: Sequence[str] = (), **policy: Any) -> list[str]:
        engine = {"extra_args": list(words)}
        found = plan(machine, policy={**typed, **policy}, engine=engine)
        return [text for text in found.warnings if "cuts them at attention" in text]

    (told,) = warned(machine)
    assert told.startswith("vLLM 0.21.0 does not capture FULL_AND_PIECEWISE graphs")
    assert 'set [policy] kv_cache_dtype = "bfloat16", or use vLLM 0.22' in told
    assert "FULL_DECODE_ONLY" in warned(machine, flag)[0]
    (of_turing,) = warned(inventory(gpus=turing(2), engine=WITH_NVCC))
    assert "kv_cache_dtype" not in of_turing
    assert not warned(machine, cuda_graphs="piecewise")
    assert not warned(machine, mtp=0)
    assert not warned(machine, kv_cache_dtype="bfloat16")
    assert not warned(inventory(gpus=H200, engine=WITH_NVCC))
    newer = replace(WITH_NVCC, version="0.33.0")
    assert not warned(replace(machine, engine=newer))


def with_room(gib: float, model: ModelCard = LLAMA) -> Inventory:
    """A 3090 of which so much is free beside Llama's weights."""
    gpus = tuple(replace(gpu, free_mib=int((15 + gib) * 1024)) for gpu in named("RTX 3090"))
    return inventory(model, gpus, WITH_NVCC)


@pytest.mark.parametrize("gib", [3.5, 4, 4.5, 5, 5.5, 6, 7, 8])
def test_it_is_weighed_only_where_the_models_own_type_holds_little(gib: float) -> None:
    machine = with_room(gib)
    own = plan(machine, policy={"kv_cache_dtype": "bfloat16"})
    found = plan(machine)
    enough = forecast(own, machine).fits and own.value("max_model_len") >= ENOUGH_EXACT
    assert found.value("kv_cache_dtype") == (None if enough else "fp8")
    if enough:
        assert found.value("max_model_len") == own.value("max_model_len")


def test_a_typed_context_that_the_models_own_type_holds_is_enough() -> None:
    machine = with_room(4)
    assert plan(machine).value("kv_cache_dtype") == "fp8"
    assert plan(machine, model={"max_model_len": 4096}).value("kv_cache_dtype") is None


@pytest.mark.parametrize(("dtype", "own"), [("bfloat16", "bfloat16"), ("float16", "float16")])
def test_who_gets_8_bits_unasked_reads_how_to_get_the_models_own(dtype: str, own: str) -> None:
    machine = with_room(4, replace(LLAMA, dtype=dtype))
    setting = plan(machine).settings["kv_cache_dtype"]
    assert setting.value == "fp8"
    assert "8 bits have no calibrated scales" in setting.reason
    assert f'[policy] kv_cache_dtype = "{own}"' in setting.reason
    followed = plan(machine, policy={"kv_cache_dtype": own})
    assert followed.value("kv_cache_dtype") == own
    assert forecast(followed, machine).fits


def test_auto_that_is_pinned_is_the_models_own() -> None:
    policy = {"kv_cache_dtype": "auto", "pinned": ["kv_cache_dtype"]}
    assert plan(with_room(4), policy=policy).value("kv_cache_dtype") is None


HALF = replace(LLAMA, dtype="float16")


def on_hopper(model: ModelCard, mib: int = 19_000) -> Inventory:
    """An H200 with so little free memory that an 8-bit cache is worth weighing."""
    return inventory(model, tuple(replace(gpu, free_mib=mib) for gpu in H200), ASKED)


@pytest.mark.parametrize("model", [LLAMA, HALF], ids=lambda model: model.dtype)
@pytest.mark.parametrize("typed", [None, "half", "bfloat16"])
def test_on_hopper_it_is_not_for_what_computes_in_float16(
    model: ModelCard, typed: str | None
) -> None:
    """FlashAttention there writes bfloat16 alone: the first request would crash the engine."""
    machine, policy = on_hopper(model), {"dtype": typed} if typed else {}
    found = plan(machine, policy=policy)
    half = typed == "half" or (typed is None and model is HALF)
    assert found.value("kv_cache_dtype") == (None if half else "fp8")
    assert forecast(found, machine).conflicts == ()
    asked = plan(machine, policy={**policy, "kv_cache_dtype": "fp8"})
    told = [text for text in asked.warnings if "computing in float16" in text]
    assert bool(told) == half
    assert [str(one) for one in forecast(asked, machine).conflicts] == told


def test_the_remedy_is_where_the_8_bit_cache_was_asked_for() -> None:
    machine = on_hopper(HALF)
    (by_key,) = forecast(plan(machine, policy={"kv_cache_dtype": "fp8"}), machine).conflicts
    assert by_key.fact.startswith("GPU 0 is SM90, ")
    assert by_key.remedy == 'set [policy] kv_cache_dtype = "auto", or dtype = "bfloat16"'
    flag = {"extra_args": ["--kv-cache-dtype", "fp8_e4m3"]}
    (by_flag,) = forecast(plan(machine, engine=flag), machine).conflicts
    assert by_flag.remedy == "use --kv-cache-dtype auto, or --dtype bfloat16"


@pytest.mark.parametrize(
    ("model", "gpus", "words"),
    [
        (HALF, H200, ["--attention-backend", "FLASHINFER"]),
        (HALF, H200, ["--attention-config.backend", "TRITON_ATTN"]),
        (replace(HALF, model_type="gemma4_text"), H200, []),
        (replace(HALF, **GEMMA_3), H200, []),
        (replace(HALF, latent=576), H200, []),
        (HALF, named("RTX 4090"), []),
    ],
    ids=range(6),
)
def test_other_attention_keeps_it_in_float16(
    model: ModelCard, gpus: tuple[Gpu, ...], words: list[str]
) -> None:
    machine = inventory(model, gpus, WITH_NVCC)
    found = plan(machine, engine={"extra_args": ["--kv-cache-dtype", "fp8", *words]})
    assert forecast(found, machine).conflicts == ()


def test_a_mixed_box_with_a_hopper_card_keeps_the_models_own() -> None:
    several = enumerate((*named("RTX 3090"), *named("H800")))
    gpus = tuple(replace(gpu, index=i, total_mib=12_000, free_mib=10_500) for i, gpu in several)
    both = {
        model.dtype: plan(inventory(model, gpus, WITH_NVCC), engine={"gpus": [0, 1]}).value(
            "kv_cache_dtype"
        )
        for model in (LLAMA, HALF)
    }
    assert both == {"bfloat16": "fp8", "float16": None}


def test_the_ladder_leaves_an_8_bit_cache_that_float16_cannot_use() -> None:
    machine = on_hopper(HALF)
    rules = LadderRules(HEALING, conflicts=lambda one: conflicts(one, machine, machine.gpus))
    asked = plan(machine, policy={"kv_cache_dtype": "fp8"})
    text = "For FP8 input, output must have dtype BF16"
    broken = Finding("backend-unsupported", text, "serving", {}, "backend.attention")
    served = decide(asked, broken, 1, rules).plan
    assert served is not None
    assert served.rungs == ("kv-dtype-plain auto",)
    assert conflicts(served, machine, machine.gpus) == ()
    current: Plan | None = plan(machine)
    short = Finding("kv-cache-none", "No available memory", "kv", {})
    while current:
        assert current.value("kv_cache_dtype") != "fp8"
        current = decide(current, short, 99, rules).plan


@pytest.mark.parametrize(
    ("card", "engine", "told"),
    [
        ("RTX 3090", ASKED, True),
        ("RTX 4090", ASKED, True),
        ("RTX 3090", WITH_NVCC, False),
        ("RTX 3090", replace(ASKED, jit_cache="0.6.8"), False),
        ("RTX 3090", WITHOUT_FLASHINFER, False),
        ("H200", ASKED, False),
    ],
)
def test_an_8_bit_cache_that_nothing_compiles_for_is_told(
    card: str, engine: EngineInfo, told: bool
) -> None:
    machine = inventory(LLAMA, named(card), engine)
    for asked in (
        {"policy": {"kv_cache_dtype": "fp8"}},
        {"engine": {"extra_args": ["--kv-cache-dtype", "fp8"]}},
    ):
        found = plan(machine, **asked)
        texts = [text for text in found.warnings if "needs FlashInfer's attention here" in text]
        assert bool(texts) == told
        assert all('set [policy] kv_cache_dtype = "bfloat16", or install' in t for t in texts)
    assert not [text for text in plan(machine).warnings if "FlashInfer's attention here" in text]
    toolkit = {"env": {"CUDA_HOME": "/opt/cuda"}}
    found = plan(machine, policy={"kv_cache_dtype": "fp8"}, engine=toolkit)
    assert not [text for text in found.warnings if "FlashInfer's attention here" in text]


QWEN_2_5 = replace(
    LLAMA, model_type="qwen2", architecture="Qwen2ForCausalLM", path="/srv/models/Qwen2.5"
)


@pytest.mark.parametrize("kind", ["qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl_text"])
def test_keys_with_a_bias_and_no_norm_are_never_stored_in_eight_bits_by_default(kind: str) -> None:
    card = replace(QWEN_2_5, model_type=kind)
    tight = tuple(replace(gpu, free_mib=19_000) for gpu in named("RTX 4090"))
    for gpus in (turing(1), tight):
        assert plan(inventory(LLAMA, gpus, WITH_NVCC)).value("kv_cache_dtype") == "fp8"
        found = plan(inventory(card, gpus, WITH_NVCC))
        assert found.value("kv_cache_dtype") is None
        assert "answer nonsense" in found.settings["kv_cache_dtype"].reason
        assert kv_dtype_small(found, Finding("vram-load", "", "load")) is None
        assert not any("answer nonsense" in text for text in found.warnings)


def test_a_typed_eight_bit_cache_of_such_a_model_stays_with_a_warning() -> None:
    machine = inventory(QWEN_2_5, turing(1), WITH_NVCC)
    verbatim: dict[str, Any] = {"engine": {"extra_args": ["--kv-cache-dtype", "fp8"]}}
    for sections in ({"policy": {"kv_cache_dtype": "fp8"}}, verbatim):
        found = plan(machine, **sections)
        assert found.value("kv_cache_dtype") == "fp8"
        (warning,) = [text for text in found.warnings if "answer nonsense" in text]
        assert warning.endswith('set [policy] kv_cache_dtype = "float16"')
