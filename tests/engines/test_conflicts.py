"""Verbatim flags that cannot run: passed as they are, said, and never called fitting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.plan import Unplannable
from caovand.engines.vllm.doctor import checkup
from caovand.engines.vllm.planning.decisions import forecast
from tests.cli.test_offline_verbs import GOOD
from tests.core.machines import (
    A100,
    CUDA,
    GPT_OSS,
    HOST,
    LLAMA_70B_AWQ,
    QWEN_27B_AWQ,
    SMALL_HYBRID,
    inventory,
    plan,
    turing,
)

TWO, THREE = inventory(), inventory(gpus=turing(3))
LATER = inventory(engine=replace(CUDA, version="0.33.0", flashinfer="0.7.2"))
GEMMA = replace(
    QWEN_27B_AWQ, model_type="gemma3_text", linear=None, layer_types=("full_attention",) * 8,
    vision=False, mtp_layers=0, quantization=None, group_size=0, head_dim=128,
)  # fmt: skip
ON_TURING = inventory(GEMMA)
HEADLESS = inventory(replace(QWEN_27B_AWQ, mtp_layers=0))
MTP = '{"method":"mtp","num_speculative_tokens":3}'
CHOICES = inventory(engine=replace(CUDA, choices=(("--kv-cache-dtype", ("auto", "fp8")),)))


@pytest.mark.parametrize(
    ("machine", "words", "said"),
    [
        (TWO, "-tp 8", "2 can be used here; use --tensor-parallel-size 2"),
        (TWO, "-pp 2 -tp 2", "cannot use 4 GPUs"),
        (TWO, "--mamba-block-size 1024", "--enable-prefix-caching, which is off; remove it"),
        (TWO, "-dp 4", "use --tensor-parallel-size 1 and fewer stages or replicas"),
        (THREE, "-tp 3", "4 key-value heads; choose a divisor"),
        (TWO, "--dtype bfloat16", "GPU 0 is SM75, which has none; use --dtype half"),
        (
            ON_TURING,
            "--dtype half",
            "models of type gemma3_text; use --dtype float32",
        ),
        (inventory(GEMMA, A100), "--dtype float16", "gemma3_text; use --dtype bfloat16"),
        (ON_TURING, "--dtype bfloat16", "which has none; use --dtype float32"),
        (ON_TURING, "--attention-backend FLASHINFER", "no kernel for float32; use --attention-b"),
        (TWO, "--dtype float32", "awq supports only 16-bit types; use --dtype half"),
        (inventory(replace(GEMMA, quantization="awq")), "-tp 2", "or an unquantised checkpoint"),
        (
            inventory(replace(GEMMA, quantization="compressed-tensors")),
            "-tp 2",
            "compressed-tensors supports only 16-bit types",
        ),
        (inventory(GPT_OSS), "-tp 2", "cannot serve mxfp4 weights: GPU 0 is SM75, but vLLM needs"),
        (inventory(GPT_OSS), "--quantization fp8", "cannot serve mxfp4 weights: GPU 0 is SM75"),
        (inventory(replace(GEMMA, quantization="modelopt")), "-tp 2", "cannot serve modelopt"),
        (TWO, "--quantization bitsandbytes", "cannot read awq weights as bitsandbytes: vLLM"),
        (inventory(replace(GPT_OSS, latent=576)), "--attention-backend FLASHINFER", "remove it"),
        (TWO, "--max-model-len 500000", "own limit is 262144; use --max-model-len 262144"),
        (TWO, "--max-model-len 500k", "own limit is 262144"),
        (TWO, "--attention-backend FLASH_ATTN", "it needs SM80; remove"),
        (LATER, "--attention-backend FLASHINFER", "does not let FlashInfer serve SM75"),
        (TWO, "--attention-backend TRITON_ATTN --kv-cache-dtype fp8", "use --kv-cache-dtype auto"),
        (TWO, "--attention-config.backend TRITON_ATTN --kv-cache-dtype fp8", "it needs SM89"),
        (LATER, "--kv-cache-dtype fp8_e5m2", "it needs SM89"),
        (
            TWO,
            "--attention-backend FLASHINFER -ac.backend TRITON_ATTN",
            "vLLM accepts only one of the two; remove",
        ),
        (TWO, "--attention-backend FLASHINFER --kv-cache-dtype int8_per_token_head", "only TRITON"),
        (TWO, "--attention-backend FLASHINFER --kv-cache-dtype turboquant_k8v4", "only TURBOQ"),
        (CHOICES, "--kv-cache-dtype fp7", "use one of auto, fp8"),
        (TWO, "--max-num-seqs 64 --max-num-batched-tokens 32", "use --max-num-seqs 32 or less"),
        (TWO, "--no-enable-chunked-prefill", "chunked prefill is off; use"),
        (
            inventory(replace(GEMMA, head_dim=256)),
            "--attention-backend TRITON_ATTN",
            "of 256 in float32: GPU 0 is SM75, where Triton's attention has 65536 bytes",
        ),
        (HEADLESS, f"--speculative-config {MTP}", "the model has no MTP head; remove"),
    ],
)
def test_a_flag_that_cannot_run_is_passed_and_said(
    machine: Inventory, words: str, said: str
) -> None:
    found = plan(machine, engine={"extra_args": words.split()})
    memory = forecast(found, machine)
    assert found.extra_args == tuple(words.split())
    assert memory.fits is False
    assert (
        [text for text in found.warnings if said in text]
        == [text for text in map(str, memory.conflicts) if said in text]
        != []
    )
    assert memory.advice or all(one.remedy for one in memory.conflicts)


@pytest.mark.parametrize(
    "words",
    [
        "-tp 8 --nnodes 4",
        "-tp 8 --distributed-executor-backend ray",
        "--max-model-len -1",
        "--max-model-len auto",
        '--max-model-len 500000 --hf-overrides {"rope_scaling":{}}',
        "--attention-backend FLASHINFER",
        "--kv-cache-dtype turboquant_k8v4",
        "--kv-cache-dtype int8_per_token_head",
        "--dtype half",
        "--mamba-block-size 1024 --enable-prefix-caching",
        f"--speculative-config {MTP}",
    ],
)
def test_a_flag_that_can_run_is_no_conflict(words: str) -> None:
    assert forecast(plan(engine={"extra_args": words.split()}), TWO).conflicts == ()


@pytest.mark.parametrize(
    ("words", "backend"),
    [
        (["--attention-backend", "TRITON_ATTN"], "TRITON_ATTN"),
        (["--attention-config.backend", "TRITON_ATTN"], None),
        (["-ac", '{"backend":"TRITON_ATTN"}'], None),
    ],
)
def test_what_is_planned_goes_with_the_attention_that_was_chosen(
    words: list[str], backend: str | None
) -> None:
    found = plan(engine={"extra_args": words})
    assert found.value("attention_backend") == backend
    assert found.value("kv_cache_dtype") is None
    assert found.value("enable_flashinfer_autotune") is None
    assert forecast(found, TWO).fits


@pytest.mark.parametrize("how", ["flag", "key"])
@pytest.mark.parametrize(
    ("kind", "backend"),
    [("int8_per_token_head", "TRITON_ATTN"), ("turboquant_k8v4", None), ("fp8", "FLASHINFER")],
)
def test_what_is_planned_goes_with_the_cache_that_was_chosen(
    kind: str, backend: str | None, how: str
) -> None:
    sections: dict[str, Any] = {"policy": {"kv_cache_dtype": kind}}
    if how == "flag":
        sections = {"engine": {"extra_args": ["--kv-cache-dtype", kind]}}
    found = plan(**sections)
    assert found.value("attention_backend") == backend
    assert bool(found.value("enable_flashinfer_autotune")) == (backend == "FLASHINFER")


def test_newer_cards_may_do_what_these_cannot() -> None:
    words = ["--dtype", "bfloat16", "--attention-backend", "FLASH_ATTN"]
    machine = inventory(SMALL_HYBRID, A100)
    assert forecast(plan(machine, engine={"extra_args": words}), machine).fits


def test_few_sequences_go_with_a_small_step() -> None:
    machine = inventory(SMALL_HYBRID, A100)
    found = plan(machine, engine={"extra_args": ["--max-num-batched-tokens", "64"]})
    assert found.value("max_num_seqs") <= 64


def test_the_doctor_fails_a_conflict_with_its_remedy() -> None:
    memory = forecast(plan(engine={"extra_args": ["-tp", "8"]}), TWO)
    found = checkup(replace(GOOD, memory=memory, caveats=memory.conflicts))
    (failed,) = [finding for finding in found if "8 GPUs" in finding.text]
    assert (failed.verdict, failed.remedy) == ("FAIL", "use --tensor-parallel-size 2")


def test_memory_that_is_short_is_never_said_to_be_left() -> None:
    machine = inventory(LLAMA_70B_AWQ, turing(1), host=replace(HOST, ram_mib=8192))
    made = plan(machine)
    memory = forecast(made, machine)
    found = checkup(replace(GOOD, memory=memory))
    told = [*made.warnings, *(finding.text for finding in found if finding.verdict == "FAIL")]
    assert len([text for text in told if "no memory is left for a cache: " in text]) == 2
    assert not any("-" in text for text in told)


@pytest.mark.parametrize(
    ("change", "backend", "said"),
    [
        ({}, "FLASHINFER", "fast on these cards"),
        ({"head_dim": 96}, "TRITON_ATTN", "no kernel for heads of 96"),
        ({"head_dim": 16}, None, "no kernel for heads of 16; vLLM selects another"),
        ({"latent": 576}, None, "vLLM selects another"),
        ({"head_dim": 0}, None, "does not state the width of the attention heads; vLLM"),
        ({"model_type": "gpt_oss"}, "TRITON_ATTN", "attention sinks only from SM100"),
        ({"model_type": "gemma4_text"}, "TRITON_ATTN", "two widths"),
        ({"model_type": "glm4"}, "TRITON_ATTN", "no kernel for float32"),
    ],
)
def test_turing_gets_an_attention_that_serves_the_model(
    change: dict[str, Any], backend: str | None, said: str
) -> None:
    found = plan(inventory(replace(GEMMA, **{"model_type": "llama", **change})))
    assert found.value("attention_backend") == backend
    assert said in found.settings["attention_backend"].reason
    cache = found.settings["kv_cache_dtype"]
    assert ("in 16 bits" in cache.reason) is (backend == "FLASHINFER")  # only it offers 8 bits
    assert cache.value is None
    assert not any("cannot use" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (replace(GEMMA, head_dim=256), "heads of 256 in float32: GPU 0 is SM75, .* needs 81920: "),
        (
            replace(GEMMA, model_type="gemma4_text", global_head_dim=512),
            "heads of 512 in half: .* 65536 bytes .* needs 98304: .*; use its GGUF with",
        ),
        (replace(GEMMA, model_type="gemma3n", head_dim=320), "heads of 320 in half: .* 98304"),
    ],
)
def test_heads_too_wide_for_tritons_attention_on_turing_are_refused(
    model: ModelCard, said: str
) -> None:
    with pytest.raises(Unplannable, match=said):
        plan(inventory(model))
    assert not any("shared memory" in text for text in plan(inventory(model, A100)).warnings)


def test_a_type_that_takes_half_the_room_is_the_remedy() -> None:
    wide = inventory(replace(GEMMA, model_type="llama", head_dim=256))
    with pytest.raises(Unplannable, match="use --dtype half, or its GGUF with"):
        plan(wide, policy={"dtype": "float32"})
    words = ["--dtype", "float32", "--attention-backend", "TRITON_ATTN"]
    assert forecast(plan(wide, engine={"extra_args": words}), wide).fits is False


def test_heads_of_unknown_width_are_no_conflict() -> None:
    machine = inventory(replace(GEMMA, model_type="llama", head_dim=0))
    found = plan(machine, engine={"extra_args": ["--attention-backend", "FLASHINFER"]})
    assert not any("cannot use" in text for text in found.warnings)


def test_a_model_that_overflows_in_float16_runs_in_float32_and_is_weighed_so() -> None:
    machine, plain = inventory(GEMMA), inventory(replace(GEMMA, model_type="llama"))
    found = plan(machine)
    assert found.value("dtype") == "float32"
    assert any("twice the memory" in text and "; use a card" in text for text in found.warnings)
    wide, narrow = forecast(found, machine), forecast(plan(plain), plain)
    assert wide.weights_mib == pytest.approx(2 * narrow.weights_mib, rel=0.02)
    assert plan(inventory(GEMMA, A100)).value("dtype") is None
