"""An exception that no row knows is classed by the code that raised it, and by nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.healing.failure import FAILURES
from caovand.core.healing.ladder import REACTIONS
from caovand.engines.common.healing.advice_texts import SPECIAL
from caovand.engines.common.logs.rows.raised import FAMILIES, ROWS, family_of
from caovand.engines.sglang.log.cause import find_cause as find_in_sglang
from caovand.engines.vllm.log.cause import find_cause as find_in_vllm

PACKAGES = "/opt/env/lib/python3.12/site-packages/"
CASES = [
    ("flashinfer/jit/core.py:build", "RuntimeError: x", "toolchain"),
    ("triton/runtime/build.py:_build", "FileNotFoundError: x", "toolchain"),
    ("torch/utils/cpp_extension.py:load", "RuntimeError: x", "toolchain"),
    ("torch/cuda/__init__.py:_lazy_init", "RuntimeError: x", "driver"),
    ("vllm/distributed/parallel_state.py:initialize", "AssertionError: x", "group"),
    ("torch/distributed/distributed_c10d.py:all_reduce", "RuntimeError: x", "collective"),
    ("vllm/tool_parsers/hermes.py:extract_tool_calls", "IndexError: x", "stream"),
    ("ray/_private/worker.py:init", "ConnectionError: x", "ray"),
    ("huggingface_hub/utils/_http.py:raise", "huggingface_hub.errors.HfHubHTTPError: x", "hub"),
    ("vllm/model_executor/models/qwen3.py:load_weights", "KeyError: 'x'", "weights"),
    ("vllm/model_executor/layers/linear.py:weight_loader", "AssertionError: x", "weights"),
    ("sglang/srt/models/qwen3.py:load_weights", "KeyError: 'x'", "weights"),
    ("aiter/jit/core.py:wrapper", "RuntimeError: x", "aiter"),
    ("vllm/v1/attention/backends/mla/a.py:forward", "RuntimeError: x", "kernel"),
    ("sglang/srt/layers/moe/a.py:forward", "RuntimeError: x", "kernel"),
    ("vllm/multimodal/processing.py:apply", "ValueError: x", "request"),
    ("vllm/model_executor/models/qwen3.py:__init__", "AttributeError: x", "model"),
    ("vllm/models/qwen4_exp/model.py:__init__", "ValueError: x", "model"),
    ("vllm/models/qwen4_exp/model.py:load_weights", "KeyError: 'x'", "weights"),
    ("vllm/model_executor/models/clip.py:get_placeholder_str", "ValueError: x", "request"),
    ("vllm/model_executor/kernels/linear/a.py:apply", "ValueError: x", "kernel"),
    ("vllm/lora/lora_model.py:from_lora_tensors", "ValueError: x", "adapter"),
    ("vllm/v1/spec_decode/medusa.py:load_model", "AssertionError: x", "drafter"),
    (
        "vllm/distributed/kv_transfer/kv_connector/factory.py:create_connector",
        "ValueError: x",
        "connector",
    ),
    ("vllm/compilation/backends.py:__call__", "AssertionError: x", "compiling"),
    ("vllm/envs.py:get_vllm_port", "ValueError: x", "configuration"),
    ("vllm/config/model.py:__post_init__", "ValueError: x", "configuration"),
    ("vllm/engine/arg_utils.py:create", "KeyError: 'x'", "configuration"),
    ("transformers/models/auto/auto_factory.py:from", "AttributeError: x", "configuration"),
    ("sglang/srt/managers/template_manager.py:f", "TypeError: x", "template"),
    ("somebody/a.py:<module>", "RuntimeError: operator does not exist", "import"),
    (
        "transformers/integrations/a.py:<module> > kernels/a.py:__init__",
        "ValueError: x",
        "packages",
    ),
]


@pytest.mark.parametrize(("frame", "text", "family"), CASES)
def test_the_nearest_code_that_is_known_names_the_family(
    frame: str, text: str, family: str
) -> None:
    outer = f"{PACKAGES}vllm/entrypoints/llm.py:__init__"
    row = family_of([outer, *(PACKAGES + one for one in frame.split(" > "))], text)
    assert row is not None
    assert row.id == f"raised.{family}"
    assert row.kind == "generic", "it is likely, never certain"


def test_every_family_has_a_case_and_its_own_advice() -> None:
    assert {family.row.id for family in FAMILIES} == {f"raised.{case[2]}" for case in CASES}
    assert all(SPECIAL[row.id] for row in ROWS)


def test_code_farther_out_only_waits_for_what_was_raised() -> None:
    config = f"{PACKAGES}vllm/config/model.py:__post_init__"
    driver = f"{PACKAGES}torch/cuda/__init__.py:get_device_capability"
    row = family_of([config, driver], "RuntimeError: x")
    assert row is not None
    assert row.failure == "gpu-absent"
    far = [f"{PACKAGES}a.py:f"] * 12
    assert family_of([config, *far], "RuntimeError: x") is None


def test_only_a_sentence_of_which_nobody_is_known_is_a_refused_value() -> None:
    row = family_of([], "ValueError: this and that is wrong")
    assert row is not None
    assert row.id == "raised.value"
    assert family_of([], "ValueError: x") is None
    assert family_of([], "RuntimeError: this and that is wrong") is None
    assert family_of([], "ValueError: memory leak detected in the pool") is None
    inside = f"{PACKAGES}vllm/v1/core/sched/scheduler.py:schedule"
    assert family_of([inside], "ValueError: this and that is wrong") is None


@pytest.mark.parametrize("find", [find_in_vllm, find_in_sglang])
def test_a_row_that_knows_the_text_counts_before_the_family(find: object) -> None:
    lines = [
        "Traceback (most recent call last):",
        f'  File "{PACKAGES}vllm/config/model.py", line 7, in __post_init__',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    ]
    found = find(lines, "load")  # type: ignore[operator]
    assert found.failure == "device-oom-load"


def test_a_running_engine_is_never_given_up_for_what_it_raised() -> None:
    for row in ROWS:
        final = REACTIONS[row.means("serving")].kind == "fatal"
        assert not final, row.id


FRAMES = st.lists(
    st.one_of(st.sampled_from([PACKAGES + case[0] for case in CASES]), st.text(max_size=60)),
    max_size=15,
)
TEXTS = st.one_of(st.sampled_from([case[1] for case in CASES]), st.text(max_size=80))


@given(FRAMES, TEXTS)
def test_any_traceback_has_one_family_or_none(frames: list[str], text: str) -> None:
    row = family_of(frames, text)
    assert row is None or (row in ROWS and row.failure in FAILURES)
    assert row == family_of(frames[-12:], text)
