"""Plans of models that do something else than generate text, and the requests that prove them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from caovand.core.checkpoint.model_task import ENCODER
from caovand.core.facts.inventory import Weights
from caovand.core.plan import Unplannable
from caovand.engines.common.task_probes import WORKS
from caovand.engines.vllm.command import build
from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.planning.decisions import forecast
from tests.core.machines import A100, CPU, CUDA, SMALL_HYBRID, inventory, named, plan, turing

MIB = 1 << 20
DENSE = replace(
    SMALL_HYBRID, architecture="Qwen3ForCausalLM", model_type="qwen3", linear=None, mtp_layers=1,
    layer_types=("full_attention",) * 4, max_model_len=32768,
)  # fmt: skip
EMBEDDER = replace(DENSE, task="embed", mtp_layers=0)
BGE_M3 = replace(
    DENSE, path="/m/bge-m3", architecture="XLMRobertaModel", model_type="xlm-roberta",
    task="embed", one_step=True, mtp_layers=0, layer_types=(ENCODER,) * 24, max_model_len=8192,
    hidden_size=1024, intermediate_size=4096, vocab_size=250_002, heads=16, kv_heads=16,
    head_dim=64, weights=(Weights("layers", "sharded", "F16", 1100 * MIB),),
)  # fmt: skip


def shown(found: Any, machine: Any) -> str:
    return " ".join(build(found, machine.engine, None).argv)


@pytest.mark.parametrize("cards", [turing(1), A100, turing(2)])
def test_an_encoder_keeps_no_cache_and_reads_a_whole_text_in_one_step(cards: Any) -> None:
    machine = inventory(BGE_M3, cards)
    found = plan(machine)
    assert (found.task, found.value("runner"), found.mtp) == ("embed", "pooling", 0)
    assert found.value("max_model_len") == 8192 <= found.value("max_num_batched_tokens")
    memory = forecast(found, machine)
    assert (memory.fits, memory.needed_mib) == (True, 0)
    assert dict(memory.parts)["kv"] == 0
    argv = shown(found, machine)
    for word in ("parser", "speculative", "prefix-caching", "FULL"):
        assert word not in argv


@pytest.mark.parametrize(
    "model", [BGE_M3, replace(DENSE, task="transcription", mtp_layers=0)], ids=["text", "speech"]
)
def test_an_encoder_on_turing_is_left_to_vllms_attention(model: Any) -> None:
    found = plan(inventory(model, turing(1)))
    for name in ("attention_backend", "kv_cache_dtype"):
        assert found.value(name) is None
    assert "attend to later ones" in found.settings["attention_backend"].reason


def test_an_embedder_is_served_by_one_card_if_it_fits() -> None:
    for model in (BGE_M3, EMBEDDER):
        assert plan(inventory(model, named("H100", 8))).value("tensor_parallel_size") == 1
    large = replace(BGE_M3, weights=(Weights("layers", "sharded", "F16", 30_000 * MIB),))
    assert plan(inventory(large, named("RTX 3090", 4))).value("tensor_parallel_size") == 2


@pytest.mark.parametrize("workload", ["chat", "long", "batch"])
def test_texts_are_shared_out_over_replicas(workload: str) -> None:
    goal = {"policy": {"workload": workload}}
    for model, box in ((BGE_M3, named("A10", 2)), (EMBEDDER, named("H100", 8))):
        found = plan(inventory(model, box), **goal)
        assert found.value("tensor_parallel_size") == 1
        assert found.value("data_parallel_size") == len(box) == len(found.cards or ())
        assert not any("idle" in warning for warning in found.warnings)
    large = replace(BGE_M3, weights=(Weights("layers", "sharded", "F16", 30_000 * MIB),))
    found = plan(inventory(large, named("RTX 3090", 5)), **goal)
    assert (found.value("tensor_parallel_size"), found.value("data_parallel_size")) == (2, 2)
    assert any("each replica takes 2 of 5 cards" in warning for warning in found.warnings)
    mixed = (*named("RTX 3090"), *(replace(gpu, index=1) for gpu in named("A10")))
    found = plan(inventory(BGE_M3, mixed), **goal)
    assert found.value("data_parallel_size") is None
    assert any("1 of 2 cards is faster than one engine over all" in one for one in found.warnings)


def test_a_text_longer_than_an_encoders_step_is_refused() -> None:
    machine = inventory(BGE_M3, A100)
    found = plan(machine, model={"max_model_len": 8192}, policy={"max_num_batched_tokens": 1024})
    (problem,) = ENGINE.planning.conflicts(found, machine)
    assert "the model needs a whole text in a step" in str(problem)
    assert "--max-num-batched-tokens 8192" in str(problem)


def test_an_encoder_on_a_small_card_takes_shorter_texts() -> None:
    long = replace(BGE_M3, max_model_len=131_072, intermediate_size=65_536, hidden_size=8192)
    found = plan(inventory(long, turing(1)))
    assert found.value("max_model_len") <= found.value("max_num_batched_tokens") < 131_072


def test_a_causal_embedder_is_sized_like_a_model_of_text() -> None:
    machine = inventory(EMBEDDER, A100)
    found = plan(machine)
    assert found.value("max_model_len") == 32768
    assert forecast(found, machine).needed_mib > 0
    assert found.value("compilation_config") == {"cudagraph_mode": "PIECEWISE"}


def test_an_encoder_on_a_processor_gets_the_least_cache() -> None:
    found = plan(inventory(BGE_M3, (), CPU))
    assert found.value("kv_cache_memory_bytes") == 64 * MIB
    assert (found.value("runner"), found.mtp) == ("pooling", 0)


@pytest.mark.parametrize(
    ("model", "flags", "task", "runner"),
    [
        (DENSE, [], "generate", None),
        (DENSE, ["--runner", "pooling"], "embed", "pooling"),
        (DENSE, ["--runner=pooling", "--convert=classify"], "classify", "pooling"),
        (EMBEDDER, ["--runner", "generate"], "generate", "generate"),
        (replace(EMBEDDER, task="score"), ["--convert", "classify"], "score", "pooling"),
        (replace(DENSE, task="transcription"), [], "transcription", None),
    ],
)
def test_verbatim_flags_choose_the_task(model: Any, flags: Any, task: str, runner: Any) -> None:
    found = plan(inventory(model, A100), engine={"extra_args": flags})
    assert (found.task, found.value("runner")) == (task, runner)


def test_a_written_reranker_ranks_by_the_answer_yes() -> None:
    model = replace(EMBEDDER, path="/m/Qwen3-Reranker-4B", task="score")
    machine = inventory(model, A100)
    found = plan(machine)
    assert found.value("hf_overrides")["classifier_from_token"] == ["no", "yes"]
    assert forecast(found, machine).fits
    words = shown(found, machine).partition("--hf-overrides ")[2]
    assert json.JSONDecoder().raw_decode(words.lstrip("'"))[0] == found.value("hf_overrides")
    (warning,) = (text for text in found.warnings if "a special prompt" in text)
    assert "qwen3_reranker.jinja" in warning
    typed = plan(machine, model={"chat_template": "/srv/reranker.jinja"})
    assert not any("a special prompt" in text for text in typed.warnings)


def test_speech_needs_a_package_that_reads_sound() -> None:
    model = replace(DENSE, task="transcription")
    with pytest.raises(Unplannable, match="pip install soundfile"):
        plan(inventory(model, A100, replace(CUDA, decodes_sound=False)))
    found = plan(inventory(model, A100, replace(CUDA, decodes_sound=True)))
    assert found.value("compilation_config") == {"cudagraph_mode": "FULL_DECODE_ONLY"}
    assert "mixed steps run without" in found.settings["compilation_config"].reason


def test_as_many_recordings_are_transcribed_at_once_as_the_cache_has_states_of() -> None:
    """Each request of whisper-large-v3 keeps 1,500 states and 448 tokens of text in 32 layers."""
    whisper = replace(
        DENSE, task="transcription", encoder_tokens=1500, max_model_len=448, vocab_size=51866,
        layer_types=("full_attention",) * 32, heads=20, kv_heads=20, head_dim=64,
        weights=(Weights("layers", "sharded", "F16", 2944 * MIB),),
    )  # fmt: skip
    each = (1500 + 448) * 32 * 2 * 20 * 64 * 2 / MIB
    for workload in ("chat", "batch"):
        found = plan(inventory(whisper, named("RTX 3060")), policy={"workload": workload})
        left = 12288 * found.value("gpu_memory_utilization") - 2944
        assert 0.5 * left < found.value("max_num_seqs") * each < left
    assert plan(inventory(whisper, named("H100"))).value("max_num_seqs") > 64
    deaf = replace(whisper, encoder_tokens=0)
    assert plan(inventory(deaf, named("RTX 3060"))).value("max_num_seqs") > 32
    asked = plan(inventory(whisper, named("RTX 3060")), policy={"max_num_seqs": 64})
    assert asked.value("max_num_seqs") == 64


@pytest.mark.parametrize(
    ("task", "answer", "flaw"),
    [
        ("embed", {"data": [{"embedding": [0.5, -1]}]}, ""),
        ("embed", {"data": [{"embedding": []}]}, 'its "embedding" is empty'),
        ("embed", {"data": [{"embedding": [0.5, None]}]}, "not a number"),
        ("embed", {"data": [{"embedding": [float("nan")]}]}, "not a number"),
        ("embed", {"error": "x"}, 'it has no "embedding"'),
        ("embed", [], 'it has no "embedding"'),
        ("score", {"data": [{"score": 0.25}]}, ""),
        ("score", {"data": [{"score": True}]}, "not a number"),
        ("classify", {"data": [{"probs": [0.2, 0.8]}]}, ""),
        ("token_classify", {"data": [{"data": [[-0.1], [0.3]]}]}, ""),
        ("transcription", {"text": ""}, ""),
        ("transcription", {"text": None}, 'it has no "text"'),
    ],
)
def test_an_answer_is_judged_by_its_numbers(task: Any, answer: Any, flaw: str) -> None:
    found = WORKS[task].flaw(answer)
    assert flaw in found if flaw else found == ""
