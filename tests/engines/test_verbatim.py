"""Verbatim flags that cannot be meant are refused, and odd ones that can are understood."""

from __future__ import annotations

import pytest

from caovand.core.plan import Plan, Unplannable
from caovand.core.reporting.report import describe
from caovand.engines.vllm.planning.decisions import forecast
from tests.core.machines import CPU, QWEN_27B_AWQ, TINY_HYBRID, inventory, plan, turing


def given(*words: str) -> Plan:
    return plan(engine={"extra_args": list(words)})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--additional-config", "{x}"], "not a JSON object"),
        (["--additional-config", "[1]"], "not a JSON object"),
        (["--additional-config"], "not a JSON object"),
        (["--config", "vllm.yaml"], "cannot plan with --config vllm.yaml"),
        (["--config=vllm.yaml"], "write its keys as flags"),
        (["--max-model-len", "long"], "32768, 32k, 32K or auto"),
        (["--max-model-len", "0"], "not a number of tokens"),
        (["--max-model-len", "8192.5"], "not a number of tokens"),
        (["--gpu-memory-utilization", "0.0"], "not a share of a card's memory"),
        (["--gpu-memory-utilization", "1.5"], "not a share of a card's memory"),
        (["--gpu-memory-utilization", "most"], "not a share of a card's memory"),
        (["--max-num-seqs", "0"], "it is not a whole number of 1 or more"),
        (["--tensor-parallel-size", "two"], "it is not a whole number of 1 or more"),
        (["--port", "http"], "not a number from 1 to 65535"),
        (["--port"], "not a number from 1 to 65535"),
        (["--cpu-offload-gb", "-5"], "not a size in GiB"),
    ],
)
def test_a_flag_that_cannot_be_used_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(Unplannable) as caught:
        given(*words)
    assert said in str(caught.value)
    assert "; write " in str(caught.value)
    assert caught.value.failure == "bad-arguments"


@pytest.mark.parametrize("words", [["--max-model-len", "auto"], ["--max-model-len=-1"]])
def test_a_context_left_to_vllm_is_forecast_as_the_longest_that_fits(words: list[str]) -> None:
    short = inventory(gpus=turing(1))
    found = plan(short, engine={"extra_args": words})
    memory = forecast(found, short)
    assert memory is not None
    assert memory.fits
    assert 0 < memory.max_model_len < QWEN_27B_AWQ.max_model_len
    assert memory.concurrency >= 1


def test_a_context_left_to_vllm_sizes_the_cache_of_a_cpu_by_the_models_limit() -> None:
    machine = inventory(TINY_HYBRID, (), CPU)
    auto = plan(machine, engine={"extra_args": ["--max-model-len", "-1"]})
    whole = plan(machine, engine={"extra_args": ["--max-model-len", "131072"]})
    name = "kv_cache_memory_bytes"
    assert auto.value(name) == whole.value(name) > 0


def test_a_context_with_a_unit_is_a_context() -> None:
    memory = forecast(given("--max-model-len", "32k"), inventory())
    plain = forecast(given("--max-model-len", "32000"), inventory())
    assert memory == plain


def test_a_second_key_is_in_no_document() -> None:
    for words in (["--api-key", "a-key", "hunter2"], ["--api-key=a-key", "hunter2"]):
        found = given(*words)
        assert "hunter2" not in str(describe(found, (), {}, None))
