"""The trials of a field test, and its report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.config.schema import Config, EngineSection, PolicySection
from caovand.core.config.services import PageSection
from caovand.lab.core.fieldtest import report
from caovand.lab.core.fieldtest.trials import (
    ATTENTION_OFF,
    CACHES,
    DRAFTS,
    kernels_act,
    quiet,
    trials,
)

ROUND = {
    "prompt_tokens": 500, "tokens": 128, "prefill_tokens_per_s": 900.0,
    "decode_tokens_per_s": 41.5, "first_token_s": [0.5], "token_s": [0.02],
}  # fmt: skip
CELL = {"prompt": 512, "at_once": 1, "rounds": [ROUND], "tokens_per_j": 0.31}
FACTS = {
    "version": "1.2", "at": "2026-11-24 12:00", "engine": "vLLM", "model": "m",
    "quick": False, "order": {"prompts": [512, 4096], "at_once": [1, 4], "rounds": 3},
    "inventory": {
        "gpus": [{"index": 0, "name": "RTX 2080 Ti", "total_mib": 11264, "driver": "560.1"}],
        "host": {"cpus": 8, "ram_mib": 32000}, "engine": {"version": "0.21.0", "torch": "2.11"},
    },
    "doctor": {"checks": [{"verdict": "WARN", "text": "the disk is slow"}]},
}  # fmt: skip


def names(config: Config, cards: list[int]) -> list[str]:
    return [one.name for one in trials(config, cards)]


@pytest.mark.parametrize(
    ("cards", "last"),
    [([], "int8-drafts"), ([0], "int8-drafts"), ([0, 1], "one-card"),
     ([0, 1, 2, 3], "two-cards")],
)  # fmt: skip
def test_fewer_cards_are_tried_where_there_are_more(cards: list[int], last: str) -> None:
    found = names(Config(), cards)
    assert found[:3] == ["configured", "kernels-off", "int4_per_token_head-cache"]
    assert found[-1] == last


def test_each_trial_differs_from_the_configuration_in_one_thing() -> None:
    config = Config(engine=EngineSection(gpus=(2, 5)), policy=PolicySection(tensor_parallel_size=2))
    tried = {one.name: one.config for one in trials(config, [2, 5])}
    assert tried["configured"] == config
    off = replace(config.engine, plugin=False)
    assert tried["kernels-off"] == replace(config, engine=off)
    own = replace(config.engine, env=(*config.engine.env, ATTENTION_OFF))
    for cache in CACHES:
        stored = replace(config, policy=replace(config.policy, kv_cache_dtype=cache))
        assert tried[f"{cache}-cache"] == stored
        assert tried[f"{cache}-cache-vllm"] == replace(stored, engine=own)
    assert tried["one-card"].engine.gpus == (2,)
    assert tried["one-card"].policy.tensor_parallel_size == 1
    assert "half-activations" in names(Config(policy=PolicySection(activations="int8")), [])
    int8 = Config(policy=PolicySection(lm_head="int8"))
    tried = {one.name: one.config for one in trials(int8, [])}
    assert tried["half-head"].policy.lm_head == "half"
    assert tried["kernels-off"].policy.lm_head is None
    assert dict(tried["int8-drafts"].engine.env) == dict(DRAFTS)
    without = names(Config(engine=EngineSection(plugin=False)), [])
    assert not {"int8-head", "int8-drafts", "kernels-off"} & set(without)
    assert not [one for one in without if one.endswith("-vllm")]
    others = names(Config(engine=EngineSection(kind="sglang")), [])
    assert not [one for one in others if "cache" in one]


def test_nothing_of_caovans_acts_while_it_is_measured() -> None:
    page = PageSection(listen="127.0.0.1:9480")
    made = quiet(Config(policy=PolicySection(tune="apply"), page=page), 4321)
    assert (made.server.host, made.server.port) == ("127.0.0.1", 4321)
    assert (made.policy.tune, made.watch.idle_probe_s) == ("off", 0)
    assert (made.metrics.listen, made.page.listen, made.history.days) == ("", "", 0)


@pytest.mark.parametrize(
    ("capabilities", "env", "act"),
    [([(7, 5)], "0", True), ([(8, 6)], "0", False), ([(8, 6)], "1", True), ([], "1", False)],
)
def test_our_kernels_are_measured_where_they_are_used(
    capabilities: list[tuple[int, int]], env: str, act: bool
) -> None:
    config = Config(engine=EngineSection(env=(("CAOVAN_SM75_FORCE", env),)))
    assert kernels_act(config, capabilities) is act
    without = replace(config, engine=replace(config.engine, plugin=False))
    assert not kernels_act(without, capabilities)


def trial(**changes: Any) -> dict[str, Any]:
    document = {
        "name": "configured", "title": "as configured", "state": "measured", "why": "",
        "start_s": 61.4, "modelled": [{"prefill": 950.0, "decode": 44.0}],
        "bench": {"cells": [CELL]},
        "plan": {"rungs": []}, "degraded": None, "failure": None,
        "forecast": {"kv_gib": {"forecast": 2.5, "reported": 2.4, "off": 0.042}},
    }  # fmt: skip
    return document | changes


def test_the_report_has_the_modelled_value_beside_the_measured_one() -> None:
    kernels = {"why": "", "parts": [{"title": "correctness", "code": 1, "text": "a\nb\n"}]}
    out = list(report.lines(FACTS, kernels, [trial()]))
    assert out[0] == "# caovan 1.2: field test of 2026-11-24 12:00"
    assert "- GPU 0: RTX 2080 Ti, 11,264 MiB" in out
    assert "- doctor, WARN: the disk is slow" in out
    assert "correctness: FAILED" in out
    assert "| as configured | 500 | 1 | 900.0 | 950 | 41.5 | 44 | 500 ms | 0.31 |" in out
    assert "Time to first token and tok/J are not modelled, nor is anything shown as -." in out[-1]
    assert "| as configured | 61 s | kv gib | 2.5 | 2.4 | +4.2% |" in out


def test_the_report_says_what_was_left_out_and_why() -> None:
    nothing = {"bench": None, "modelled": None, "forecast": None, "start_s": None}
    left = trial(state="skipped", why="no card", **nothing)
    alone = trial(forecast=None)
    out = list(report.lines(FACTS, {"why": "no SM75 card", "parts": []}, [alone, left]))
    assert "Not measured: no SM75 card." in out
    assert "- as configured: skipped: no card" in out
    assert "| as configured | 61 s | - | - | - | - |" in out


def test_a_row_that_was_measured_with_a_degraded_plan_says_so_and_why() -> None:
    healed = trial(
        plan={"rungs": ["plugin-off"]},
        degraded={"why": ["without the plugin, because of kernel-fault"]},
        failure={"failure": "kernel-fault", "text": "illegal memory access"},
        modelled=None,
    )
    out = list(report.lines(FACTS, None, [healed]))
    title = "as configured, degraded: plugin-off"
    assert f"| {title} | 500 | 1 | 900.0 | - | 41.5 | - | 500 ms | 0.31 |" in out
    assert f"| {title} | 61 s | kv gib | 2.5 | 2.4 | +4.2% |" in out
    why = "without the plugin, because of kernel-fault; last failure: illegal memory access"
    assert f"- {title}: {why}" in out


def test_a_rung_that_costs_time_once_degrades_nothing_and_is_named_all_the_same() -> None:
    failure = {"failure": "compile-cache", "text": "a broken cache"}
    healed = trial(plan={"rungs": ["fresh-cache 2"]}, failure=failure)
    out = list(report.lines(FACTS, None, [healed]))
    assert "- as configured, rungs: fresh-cache 2: last failure: a broken cache" in out


def test_kernels_that_were_not_used_are_named_with_the_reason() -> None:
    unused = ("caovan's kernels are not used: use --dtype half",)
    out = list(report.lines(FACTS, None, [trial(unused=unused), trial(title="kernels off")]))
    assert "- as configured: caovan's kernels are not used: use --dtype half" in out
    assert not [line for line in out if line.startswith("- kernels off")]


def test_the_report_names_what_was_asked_for_and_a_quick_test() -> None:
    full = list(report.lines(FACTS, None, ()))
    assert full[0] == "# caovan 1.2: field test of 2026-11-24 12:00"
    assert "- requested: prompts of 512, 4,096 tokens, 1, 4 at once, 3 rounds of each" in full
    order = {"prompts": [256], "at_once": [1, 2], "rounds": 1}
    quick = list(report.lines({**FACTS, "quick": True, "order": order}, None, ()))
    assert quick[0] == "# caovan 1.2: quick field test of 2026-11-24 12:00"
    assert "- requested: prompts of 256 tokens, 1, 2 at once, 1 round of each" in quick
