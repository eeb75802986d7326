"""A hybrid that drafts goes on from right states: by the plugin's fixes, or without a cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import EngineInfo, Gpu
from caovand.core.healing.failure import Finding
from caovand.core.plan import Plan, Setting, Taken
from caovand.engines.vllm.command import build
from caovand.engines.vllm.healing.cures import HEALING
from tests.core.machines import (
    A100,
    ABSENT,
    CUDA,
    FIXED,
    H200,
    LLAMA_70B_AWQ,
    inventory,
    plan,
    turing,
)


@pytest.mark.parametrize(
    ("gpus", "sections"),
    [
        (turing(2), {}),
        (turing(2), {"policy": {"max_num_seqs": 4}}),
        (turing(2), {"engine": {"extra_args": ["--max-num-seqs", "4"]}}),
        (H200, {}),
    ],
)
def test_drafting_requests_of_a_hybrid_get_no_prefix_cache_and_no_asynchronous_scheduling(
    gpus: tuple[Gpu, ...], sections: dict[str, Any]
) -> None:
    found = plan(inventory(gpus=gpus), **sections)
    assert found.mtp == 3
    assert found.value("enable_prefix_caching") is False
    assert found.value("mamba_cache_mode") is None
    assert found.value("async_scheduling") is False
    argv = build(found, CUDA).argv
    assert {"--no-enable-prefix-caching", "--no-async-scheduling"} <= set(argv)
    assert not [text for text in found.warnings if "spoil" in text]


def test_one_drafting_request_at_a_time_is_scheduled_asynchronously_but_has_no_prefix_cache() -> (
    None
):
    found = plan(policy={"max_num_seqs": 1})
    assert found.mtp == 3
    assert found.value("enable_prefix_caching") is False
    assert found.value("async_scheduling") is None


@pytest.mark.parametrize("gpus", [turing(2), turing(1), H200])
@pytest.mark.parametrize("sequences", [1, 4])
def test_with_the_plugins_fixes_there_are_both_while_it_drafts(
    gpus: tuple[Gpu, ...], sequences: int
) -> None:
    found = plan(inventory(gpus=gpus, engine=FIXED), policy={"max_num_seqs": sequences, "mtp": 3})
    assert found.mtp == 3
    assert found.value("enable_prefix_caching") is True
    assert found.value("mamba_cache_mode") == "align"
    assert found.value("async_scheduling") is None
    assert found.env["CAOVAN_STATES"].value == "required"
    assert not [text for text in found.warnings if "corrupt" in text]


OWN_DRAFTS = ("-sc", '{"method":"mtp","num_speculative_tokens":3}')
ELSEWHERE = {"extra_args": ["-sc", '{"method":"mtp","model":"/srv/other"}']}


@pytest.mark.parametrize(
    ("engine", "sections", "environ"),
    [
        (replace(FIXED, states="fail: a function is not vLLM 0.21.0's"), {}, {}),
        (FIXED, {}, {"VLLM_PLUGINS": ""}),
        (FIXED, {}, {"VLLM_PLUGINS": "others"}),
        (FIXED, {"engine": {"env": {"VLLM_PLUGINS": "others,theirs"}}}, {}),
        (FIXED, {"engine": {"extra_args": ["-pp", "2", *OWN_DRAFTS]}}, {}),
        (FIXED, {"engine": ELSEWHERE}, {}),
    ],
    ids=["unfixed", "no plugins", "others inherited", "others named", "stages", "another's drafts"],
)
def test_where_the_fixes_do_not_act_or_were_not_shown_to_there_is_no_cache(
    engine: EngineInfo, sections: dict[str, Any], environ: dict[str, str]
) -> None:
    found = plan(inventory(engine=engine), how={"environ": environ}, **sections)
    assert found.value("enable_prefix_caching") is False
    assert "CAOVAN_STATES" not in found.env


@pytest.mark.parametrize(
    ("inherited", "typed", "cached"),
    [
        ("caovan_vllm_sm75_turbo3", None, True),
        ("other", "caovan_vllm_sm75_turbo3,other", True),
        ("caovan_vllm_sm75_turbo3", "other", False),
    ],
)
def test_the_plugins_that_the_configuration_names_are_the_ones_loaded(
    inherited: str, typed: str | None, cached: bool
) -> None:
    sections = {"engine": {"env": {"VLLM_PLUGINS": typed}}} if typed else {}
    how = {"environ": {"VLLM_PLUGINS": inherited}}
    found = plan(inventory(engine=FIXED), how=how, **sections)
    assert found.value("enable_prefix_caching") is cached


def test_a_rung_that_leaves_the_plugin_out_takes_the_cache_with_it() -> None:
    whole = plan(inventory(engine=FIXED))
    blamed = Finding("unknown", "", captures={"component": "plugin"})
    step = HEALING.by_name["plugin-off"].step(whole, blamed)
    assert step is not None
    assert step.env == {"VLLM_PLUGINS": "", "CAOVAN_STATES": ""}
    assert step.settings == {
        "enable_prefix_caching": False,
        "mamba_cache_mode": None,
        "async_scheduling": False,
    }
    alone = HEALING.by_name["plugin-off"].step(plan(), blamed)
    assert alone is not None
    assert not alone.settings


def test_the_rung_takes_the_cache_where_the_depth_is_left_to_vllm() -> None:
    typed = {"extra_args": ["-sc", '{"method":"mtp"}']}
    whole = plan(inventory(engine=FIXED), engine=typed)
    assert whole.value("enable_prefix_caching") is True
    blamed = Finding("unknown", "", captures={"component": "plugin"})
    step = HEALING.by_name["plugin-off"].step(whole, blamed)
    assert step is not None
    assert step.settings["enable_prefix_caching"] is False


@pytest.mark.parametrize(
    "sections",
    [
        {"engine": {"extra_args": ["--no-enable-prefix-caching"]}},
        {"policy": {"max_num_batched_tokens": 512, "mtp": 3}},
    ],
    ids=["by a flag", "by short steps"],
)
def test_without_a_cache_the_fixes_do_not_act_and_nothing_is_scheduled_asynchronously(
    sections: dict[str, Any],
) -> None:
    sections = {**sections, "policy": {"max_num_seqs": 4, **sections.get("policy", {})}}
    found = plan(inventory(engine=FIXED), **sections)
    assert found.mtp
    assert found.value("enable_prefix_caching") is False
    assert found.value("async_scheduling") is False
    assert "CAOVAN_STATES" not in found.env


def test_a_rung_that_gives_up_the_cache_gives_up_asynchronous_scheduling_with_it() -> None:
    step = HEALING.by_name["prefix-caching-off"].step(
        plan(inventory(engine=FIXED)), Finding("engine-died", "")
    )
    assert step is not None
    assert (step.settings["async_scheduling"], step.env) == (False, {"CAOVAN_STATES": ""})
    step = HEALING.by_name["prefix-caching-off"].step(
        plan(policy={"mtp": 0}), Finding("engine-died", "")
    )
    assert step is not None
    assert "async_scheduling" not in step.settings


@pytest.mark.parametrize("engine", [CUDA, FIXED])
@pytest.mark.parametrize(("depth", "mtp"), [("0", 0), ("1", 1), ("3", 2)])
def test_a_kept_step_never_drafts_more_than_today(engine: EngineInfo, depth: str, mtp: int) -> None:
    """The prefix cache was decided for what is drafted today."""
    before = plan(inventory(engine=engine))
    fewer = Setting({"method": "mtp", "num_speculative_tokens": 2}, "ladder", "MTP 3 -> 2")
    kept = replace(
        before, settings={**before.settings, "speculative_config": fewer}, taken=(Taken("mtp"),)
    )
    how = {"remembered": kept, "environ": {"CAOVAN_AUTO_SPEC": depth}}
    assert plan(inventory(engine=engine), how=how).mtp == mtp


def test_no_more_requests_are_kept_than_are_planned_today() -> None:
    before = plan()
    more = Setting(4, "ladder", "sequences 8 -> 4")
    kept = replace(
        before, settings={**before.settings, "max_num_seqs": more}, taken=(Taken("sequences"),)
    )
    found = plan(policy={"max_num_seqs": 1}, how={"remembered": kept})
    assert found.value("max_num_seqs") == 1


def test_a_plan_kept_from_before_there_was_a_cache_gets_none_without_the_plugin() -> None:
    """An earlier release's step left the plugin out alone: nothing was cached then."""
    before = plan()
    off = Setting("", "ladder", "caovan's kernels off")
    kept = replace(before, env={**before.env, "VLLM_PLUGINS": off}, taken=(Taken("plugin-off"),))
    found = plan(inventory(engine=FIXED), how={"remembered": kept})
    assert found.env["VLLM_PLUGINS"].value == ""
    assert found.value("enable_prefix_caching") is False


@pytest.mark.parametrize(
    "other",
    [
        plan(inventory(engine=replace(CUDA, version="0.32.0"))),
        plan(policy={"mtp": 0}),
        plan(inventory(LLAMA_70B_AWQ, A100)),
    ],
    ids=["a later release", "nothing drafted", "no hybrid"],
)
def test_where_states_are_kept_there_are_both(other: Plan) -> None:
    assert other.value("enable_prefix_caching") is True
    assert other.value("async_scheduling") is None


@pytest.mark.parametrize(
    ("found", "cached"),
    [
        (plan(engine={"extra_args": ["-sc", '{"method":"mtp","model":"/srv/other"}']}), False),
        (plan(engine={"extra_args": ["-sc", '{"method":"ngram"}']}), True),
        (
            plan(
                inventory(ABSENT),
                engine={"extra_args": ["-sc", '{"method":"mtp","num_speculative_tokens":7}']},
            ),
            False,
        ),
        (plan(inventory(ABSENT)), True),
    ],
    ids=[
        "a depth left to vLLM",
        "no head",
        "a model not here that may be a hybrid",
        "not drafting",
    ],
)
def test_the_prefix_cache_is_given_up_where_a_hybrid_may_draft(found: Plan, cached: bool) -> None:
    assert found.value("enable_prefix_caching") is cached


@pytest.mark.parametrize(
    ("sequences", "told"),
    [
        (4, ["--async-scheduling", "--enable-prefix-caching"]),
        (1, ["--enable-prefix-caching"]),
    ],
)
def test_what_spoils_answers_is_warned_of_where_it_is_asked_for(
    sequences: int, told: list[str]
) -> None:
    typed = {"extra_args": ["--async-scheduling", "--enable-prefix-caching"]}
    found = plan(engine=typed, policy={"max_num_seqs": sequences})
    assert found.value("async_scheduling") is True
    assert found.value("enable_prefix_caching") is True
    spoiling = [text for text in found.warnings if "can silently corrupt answers" in text]
    assert [text.partition(" ")[0] for text in spoiling] == told
    assert found.value("mamba_cache_mode") == "align"


def test_who_reads_long_prompts_is_told_what_brings_the_prefix_cache_back() -> None:
    def reason(of: EngineInfo = CUDA, **sections: Any) -> str:
        return plan(inventory(engine=of), **sections).settings["speculative_config"].reason

    long = {"workload": "long"}
    assert reason(policy={**long, "mtp": 3}).endswith("[policy] mtp = 0 turns it on again")
    off = {"extra_args": ["--no-enable-prefix-caching"]}
    for other in (
        reason(FIXED, policy={**long, "mtp": 3}),
        reason(policy={"mtp": 3}),
        reason(policy={**long, "mtp": 0}),
        reason(policy={**long, "mtp": 3}, engine=off),
        reason(replace(CUDA, version="0.32.0"), policy={**long, "mtp": 3}),
    ):
        assert "turns it on again" not in other
