"""Any input file leads to a plan or a refusal in words, never to another exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.checkpoint.config_json import describe, invented_weights
from caovand.core.checkpoint.values import BadConfig
from caovand.core.config.parser import parse as parse_config
from caovand.core.config.schema import Config
from caovand.core.facts.inventory import Inventory
from caovand.core.facts.inventory_file import BadInventory, parse, render
from caovand.core.plan import Unplannable
from caovand.core.reporting.report import describe as report
from caovand.engines.vllm.command import build
from caovand.engines.vllm.planning.decisions import forecast
from caovand.engines.vllm.planning.planner import make_plan
from tests.core.machines import CPU, CUDA, HOST, QWEN_27B_AWQ, turing
from tests.examples import examples

NUMBERS = st.one_of(
    st.integers(-5, 300),
    st.integers(),
    st.sampled_from([10**30, -(10**30), 10**400, 1 << 31, (1 << 31) + 1, True]),
    st.floats(),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
ROPE = st.fixed_dictionaries(
    {}, optional={"rope_type": JSON, "factor": JSON, "original_max_position_embeddings": JSON}
)
MODEL: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5_text",
    "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "head_dim": 32,
    "num_key_value_heads": 2, "vocab_size": 100, "intermediate_size": 128, "dtype": "bfloat16",
    "full_attention_interval": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    "mtp_num_hidden_layers": 1, "max_position_embeddings": 4096, "mamba_ssm_dtype": "float32",
    "sliding_window": None, "rope_parameters": {"rope_type": "yarn", "factor": 2.0},
    "rope_scaling": None, "quantization_config": {"quant_method": "awq", "group_size": 32},
    "layer_types": None, "layers_block_type": None, "hybrid_override_pattern": None,
    "kv_lora_rank": None, "qk_rope_head_dim": None, "num_experts": 4, "moe_intermediate_size": 32,
    "text_config": None, "thinker_config": None, "torch_dtype": None, "vision_config": None,
    "tie_word_embeddings": False, "use_sliding_window": True,
}  # fmt: skip
HOSTILE = st.lists(
    st.tuples(st.sampled_from(sorted(MODEL)), st.one_of(JSON, ROPE)), min_size=1, max_size=4
).map(lambda changes: {**MODEL, **dict(changes)})
ANY = Config()
MACHINE: dict[str, Any] = json.loads(json.dumps(render(turing(2), HOST, CUDA)))


def plans(inventory: Inventory, config: Config = ANY) -> None:
    """Plan, forecast and print; only a refusal may stop that."""
    try:
        plan = make_plan(config, inventory)
    except Unplannable:
        return
    argv = build(plan, inventory.engine).shown
    json.dumps(report(plan, argv, {}, forecast(plan, inventory)))


@examples(300)
@given(st.one_of(HOSTILE, st.dictionaries(st.text(max_size=8), JSON, max_size=4), JSON), JSON)
def test_any_config_of_a_model_is_planned_for_or_refused(config: Any, limit: Any) -> None:
    if not isinstance(config, dict):
        return
    try:
        card = describe(config, {"model_max_length": limit}, "/srv/m")
    except BadConfig:
        return
    assert card.max_model_len > 0
    weighed = {**card.__dict__, "weights": invented_weights(config, card)}
    for gpus, engine in ((turing(2), CUDA), ((), CPU)):
        plans(Inventory(gpus, HOST, engine, type(card)(**weighed)))


@st.composite
def machines(draw: st.DrawFn) -> Any:
    """A saved inventory with some values of it replaced."""
    document = json.loads(json.dumps(MACHINE))
    places = [document, document["host"], document["engine"], *document["gpus"]]
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.sampled_from(places))
        place[draw(st.sampled_from(sorted(place)))] = draw(JSON)
    return document


@examples(300)
@given(st.one_of(machines(), JSON))
def test_any_inventory_is_planned_for_or_refused(document: Any) -> None:
    try:
        gpus, host, engine = parse(document)
    except BadInventory:
        return
    json.dumps(render(gpus, host, engine), allow_nan=False)
    if engine is not None:
        plans(Inventory(gpus, host, engine, QWEN_27B_AWQ))


FLAGS = (
    "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization",
    "--speculative-config", "--compilation-config", "--additional-config", "--kv-cache-dtype",
    "--kv-cache-memory-bytes", "--cpu-offload-gb", "--tensor-parallel-size", "-dp", "-pp", "-tp",
    "--dtype", "--enable-prefix-caching", "--no-enable-prefix-caching", "--mamba-cache-mode",
    "--enforce-eager", "--language-model-only", "--port", "--host", "--served-model-name",
    "--api-key", "--additional-config.caovan_mode", "-sc.num_speculative_tokens", "-cc.mode",
    "--config", "-O", "--enable-sleep-mode", "--attention-backend",
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(["auto", "-1", "0", "1", "2", "8k", "8K", "1e400", "NaN", "fp8", "{}", "None"]),
    JSON.map(json.dumps),
    st.text(max_size=6),
)


@examples(300)
@given(st.lists(st.tuples(st.sampled_from(FLAGS), st.lists(VALUES, max_size=2)), max_size=4))
def test_any_verbatim_flags_are_planned_with_or_refused(words: list[tuple[str, list[str]]]) -> None:
    extra = [word for flag, values in words for word in (flag, *values) if "\0" not in word]
    config = parse_config({"engine": {"extra_args": extra}})
    for gpus, engine in ((turing(2), CUDA), ((), CPU)):
        plans(Inventory(gpus, HOST, engine, QWEN_27B_AWQ), config)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rope_parameters": [1]}, '"rope_parameters" is [1], not a table'),
        ({"rope_scaling": "yarn", "rope_parameters": None}, "not a table"),
        ({"rope_parameters": {"factor": "4"}}, "factor"),
        ({"rope_parameters": {"factor": float("inf")}}, "factor"),
        ({"rope_parameters": {"factor": -1}}, "factor"),
        ({"rope_parameters": {"factor": [2]}}, "factor"),
        ({"rope_parameters": {"factor": 1e9}}, "is scaled by 1e+09"),
        ({"num_hidden_layers": 10_001}, "more than 10000"),
        ({"num_hidden_layers": 10**30}, "not a count"),
        ({"mtp_num_hidden_layers": 99_999}, "more than 10000"),
        ({"hidden_size": -64}, '"hidden_size" is -64, not a count'),
        ({"hidden_size": "64"}, "not a count"),
        ({"hidden_size": 64.5}, "not a count"),
        ({"hidden_size": float("nan")}, "not a count"),
        ({"num_attention_heads": True}, "not a count"),
        ({"layer_types": "full_attention"}, "not a list of names"),
        ({"layer_types": ["full_attention", 3]}, "not a list of names"),
        ({"layer_types": ["full_attention"]}, "has 8 layers but lists the types of 1"),
        ({"num_kv_shared_layers": 8}, '"num_kv_shared_layers" is 8, but it has 8 layers'),
        ({"linear_conv_kernel_dim": 0}, 'lacks "linear_conv_kernel_dim"'),
        ({"quantization_config": "awq"}, "not a table"),
        ({"dtype": 16}, '"dtype" is 16, not a name'),
        ({"model_type": "qwen3\ud800"}, "not a name"),
        ({"architectures": [5]}, "not a class"),
        ({"num_hidden_layers": None, "hidden_size": None}, "lacks the dimensions"),
    ],
)
def test_a_malformed_config_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfig) as caught:
        describe({**MODEL, **change})
    assert said in str(caught.value)


def test_an_absent_size_and_an_unknown_layer_are_told_with_a_remedy() -> None:
    card = describe({**MODEL, "vocab_size": None, "layer_types": ["full_attention", "x"] * 4})
    assert "lacks vocab_size" in card.notes[0].fact
    assert "an unknown type ('x')" in card.notes[1].fact
    assert all(note.remedy for note in card.notes)
    assert describe(MODEL).notes == ()


def test_what_is_meant_by_odd_but_common_values_is_read() -> None:
    more = {
        "layer_types": ["full_attention"] * 9,  # one of the MTP head
        "quantization_config": {"quant_method": "gptq", "group_size": -1},
        "intermediate_size": [128, 256],
    }
    card = describe({**MODEL, **more, "hidden_size": 64.0})
    assert (len(card.layer_types), card.group_size, card.hidden_size) == (8, 0, 64)
    assert card.intermediate_size == 256


def test_layers_that_are_only_an_mlp_count_as_layers() -> None:
    card = describe({**MODEL, "hybrid_override_pattern": "M-*E" * 2})
    assert card.layer_types == ("mamba", "mlp", "full_attention", "mlp") * 2
    assert card.notes == ()


GPU = MACHINE["gpus"][0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": [GPU, GPU]}, "two cards have the same index"),
        ({"gpus": [{**GPU, "total_mib": 0}]}, r"gpus\[0\].total_mib is 0"),
        (
            {"gpus": [{**GPU, "free_mib": 22528}]},
            r"gpus\[0\].free_mib is 22528, not at most total_mib",
        ),
        ({"gpus": [{**GPU, "total_mib": float("inf")}]}, r"total_mib is inf"),
        ({"gpus": [{**GPU, "free_mib": float("nan")}]}, r"free_mib is nan"),
        ({"gpus": [{**GPU, "index": 0.5}]}, r"index is 0.5, not a whole number"),
        ({"gpus": [{**GPU, "users": [1]}]}, r"users\[0\] is 1, not a list"),
        ({"gpus": [{**GPU, "users": [[1, "x"]]}]}, r"users\[0\] .* not a list of 3"),
        ({"gpus": [{**GPU, "users": [[1, "x", "much"]]}]}, r"users\[0\]\[2\] is 'much'"),
        ({"gpus": [{**GPU, "nvlink": 1}]}, "nvlink is 1, not a list"),
        ({"gpus": [{**GPU, "compute_capability": [7]}]}, "compute_capability"),
        ({"gpus": [{**GPU, "compute_capability": [7, "x"]}]}, "compute_capability"),
        ({"gpus": [{**GPU, "compute_capability": float("inf")}]}, "compute_capability"),
        ({"gpus": [{**GPU, "compute_capability": "²"}]}, "compute_capability"),
        ({"gpus": [{**GPU, "compute_capability": True}]}, "compute_capability"),
        ({"gpus": [{**GPU, "mig": "no"}]}, "mig is 'no', not true or false"),
        ({"host": {**MACHINE["host"], "ram_mib": 0}}, "host.ram_mib is 0"),
        ({"host": {**MACHINE["host"], "memory_gb_s": ""}}, "host.memory_gb_s is '', not a number"),
        ({"host": {**MACHINE["host"], "cpus": 0}}, "host.cpus is 0"),
        ({"host": {**MACHINE["host"], "swap_mib": 1e300}}, "host.swap_mib"),
        ({"engine": {**MACHINE["engine"], "version": 0.21}}, "engine.version is 0.21, not a text"),
        ({"engine": {**MACHINE["engine"], "flags": "--port"}}, "engine.flags"),
        ({"engine": {**MACHINE["engine"], "choices": {"--dtype": "half"}}}, "engine.choices"),
        ({"engine": {**MACHINE["engine"], "build": "rocm"}}, "engine.build"),
    ],
)
def test_a_malformed_inventory_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInventory, match=said):
        parse({**MACHINE, **change})


def test_an_inventory_with_every_kind_of_value_survives() -> None:
    engine = {**MACHINE["engine"], "choices": {"--dtype": ["half"]}, "flags": ["--port"]}
    gpu = {**GPU, "users": [[1, "x", 300]], "pcie": [3, 16], "free_mib": 300.5}
    found = parse({**MACHINE, "gpus": [gpu], "engine": engine})
    assert found[0][0].users == ((1, "x", 300),)
    assert found[0][0].free_mib == 300
    assert parse(json.loads(json.dumps(render(*found)))) == found


def test_an_inventory_of_an_earlier_release_names_the_version_by_the_engine() -> None:
    """Its file may have been written for another machine and cannot be written again."""
    engine = dict(MACHINE["engine"])
    former = {"vllm": engine.pop("version"), **engine}
    assert parse({**MACHINE, "engine": former}) == parse(MACHINE)
    del former["build"]
    former["vllm"] = "0.32.0+cpu"
    assert parse({**MACHINE, "engine": former})[2].build == "cpu"  # type: ignore[union-attr]


@pytest.mark.parametrize("mib", [0, 1, 241, 1023])
def test_a_card_that_holds_nothing_is_refused(mib: int) -> None:
    card = type(turing(1)[0])(0, "x", (7, 5), mib, mib)
    with pytest.raises(Unplannable, match=f"GPU 0: it has {mib} MiB"):
        make_plan(parse_config({}), Inventory((card,), HOST, CUDA, QWEN_27B_AWQ))
