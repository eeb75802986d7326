"""Flags that vLLM has since 0.32: which plans set them, and which of an operator's cannot run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import EngineInfo
from caovand.core.plan import Plan, Unplannable
from caovand.engines.vllm.command import build
from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.planning.environment import PCIE_RANKS
from tests.boxes.models import model
from tests.core.machines import CPU, CUDA, H200, inventory, plan, turing
from tests.engines.test_real_flags import engine

NEW = engine("0.33.0")
PCIE = "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC"
FAST: dict[str, Any] = {"how": {"mode": "fast"}}


def planned(release: EngineInfo, cards: int = 2, **sections: Any) -> Plan:
    return plan(inventory(gpus=turing(cards), engine=release), **sections)


def test_prompts_are_matched_inside_blocks_in_mode_fast_alone() -> None:
    found = planned(NEW, **FAST)
    assert found.value("prefix_match_unit") == 16
    assert "a block of " in found.settings["prefix_match_unit"].reason
    for other in (planned(NEW), planned(CUDA, **FAST)):
        assert other.value("prefix_match_unit") is None
    off = planned(NEW, **FAST, engine={"extra_args": ["--no-enable-prefix-caching"]})
    assert off.value("prefix_match_unit") is None
    fast_card = plan(inventory(gpus=H200, engine=NEW), **FAST)
    assert fast_card.value("enable_prefix_caching")
    assert fast_card.value("prefix_match_unit") is None
    dense = plan(inventory(model("R1-Distill-Qwen-32B"), H200, NEW), **FAST)
    assert dense.value("prefix_match_unit") is None


def test_a_silent_stream_has_lines_where_the_engine_can() -> None:
    assert planned(NEW).value("sse_keep_alive_interval") == 15
    assert plan(inventory(gpus=(), engine=CPU)).value("sse_keep_alive_interval") == 15
    assert planned(CUDA).value("sse_keep_alive_interval") is None
    typed = planned(NEW, engine={"extra_args": ["--sse-keep-alive-interval", "0"]})
    assert typed.value("sse_keep_alive_interval") == 0


def test_the_access_log_leaves_out_what_caovan_polls() -> None:
    name, api = "disable_access_log_for_endpoints", ENGINE.api
    for found in (planned(NEW), planned(engine("0.21.0"))):
        assert set(found.value(name).split(",")) == {api.health, api.pending, api.metrics}
        argv = build(found, NEW).argv
        assert argv[argv.index("--disable-access-log-for-endpoints") + 1] == found.value(name)
    typed = planned(NEW, engine={"extra_args": ["--disable-access-log-for-endpoints", "/ping"]})
    assert typed.value(name) == "/ping"
    for words in (["--disable-uvicorn-access-log"], ["--log-config-file", "/etc/log.json"]):
        assert planned(NEW, engine={"extra_args": words}).value(name) is None


def test_an_engine_without_the_flag_logs_every_poll() -> None:
    flag = "--disable-access-log-for-endpoints"
    older = replace(NEW, flags=NEW.flags - {flag})
    assert planned(older).value("disable_access_log_for_endpoints") is None
    assert flag not in build(planned(older), older).argv


def test_a_plan_says_that_clients_choose_their_priority() -> None:
    words = {"extra_args": ["--scheduling-policy", "priority"]}

    def told(**sections: Any) -> list[str]:
        return [one for one in planned(NEW, **sections).warnings if "scheduling-policy" in one]

    assert "([gateway] listen) orders requests by keys" in told(engine=words)[0]
    gateway = {"listen": "127.0.0.1:8080"}
    assert "gateway passes that on" in told(engine=words, gateway=gateway)[0]
    assert told() == told(engine={"extra_args": ["--scheduling-policy", "fcfs"]}) == []


@pytest.mark.parametrize("value", ["-1", "often", "1.5"])
def test_an_interval_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(Unplannable, match="not a number of seconds"):
        planned(NEW, engine={"extra_args": ["--sse-keep-alive-interval", value]})


def test_flashinfers_all_reduce_over_pcie_is_for_fast_plans_with_graphs() -> None:
    found = planned(NEW, **FAST)
    assert found.env[PCIE].value == "1"
    assert 2 in PCIE_RANKS
    without_graphs = planned(NEW, **FAST, policy={"cuda_graphs": "none"})
    for other in (
        planned(NEW),
        planned(CUDA, **FAST),
        planned(NEW, 1, **FAST),
        without_graphs,
    ):
        assert PCIE not in other.env
    linked = tuple(replace(gpu, nvlink=(1 - gpu.index,)) for gpu in turing(2))
    assert PCIE not in plan(inventory(gpus=linked, engine=NEW), **FAST).env


def refused(engine: EngineInfo, config: str, *words: str) -> list[str]:
    words = ("--speculative-config", config, *words)
    found = planned(engine, engine={"extra_args": list(words)})
    conflicts = ENGINE.planning.conflicts(found, inventory(gpus=turing(2), engine=engine))
    return [str(one) for one in conflicts]


def drafts(more: str) -> str:
    return '{"method": "mtp", "num_speculative_tokens": 3, ' + more + "}"


@pytest.mark.parametrize(
    ("schedule", "fact"),
    [
        ("[[1, 4, 3], [5, 64, 1]]", ""),
        ("[[5, 64, 1], [1, 4, 3]]", ""),
        ("[[2, 4, 3]]", "its first batch size is not 1"),
        ("[[1, 4, 3], [4, 8, 1]]", "overlap"),
        ("[[1, 4, 3], [9, 8, 1]]", "end before they begin"),
        ("[[1, 4]]", "not a list of [first, last, drafts]"),
        ("[[1, 4, -1]]", "not a list of [first, last, drafts]"),
        ("7", "not a list of [first, last, drafts]"),
    ],
)
def test_drafts_by_batch_size_are_checked_before_a_start(schedule: str, fact: str) -> None:
    config = drafts(f'"num_speculative_tokens_per_batch_size": {schedule}')
    found = [one for one in refused(NEW, config) if "per_batch_size" in one]
    assert bool(found) is bool(fact)
    assert all(fact in one for one in found)
    assert "does not support it; use vLLM 0.32 or newer" in refused(CUDA, config)[0]


def test_a_match_unit_is_refused_where_layers_are_alike() -> None:
    words = {"engine": {"extra_args": ["--prefix-match-unit", "16"]}}
    machine = inventory(model("R1-Distill-Qwen-32B"), H200, NEW)
    found = ENGINE.planning.conflicts(plan(machine, **words), machine)
    assert ["remove --prefix-match-unit" in str(one) for one in found] == [True]
    hybrid = inventory(gpus=turing(2), engine=NEW)
    assert not ENGINE.planning.conflicts(plan(hybrid, **words), hybrid)
