"""The ladder: the remedy for each failure, protected settings, and that it always ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.config.schema import PolicySection
from caovand.core.healing.failure import FAILURES, Failure, Finding
from caovand.core.healing.ladder import (
    REACTIONS,
    LadderRules,
    decide,
    rules_of,
    worth_remembering,
)
from caovand.core.healing.rung import ANY
from caovand.core.plan import Plan, Setting
from caovand.engines.vllm.healing.cures import CURES, HEALING
from caovand.engines.vllm.log.phases import PHASES
from tests.examples import examples

NAMES = tuple(phase.name for phase in PHASES)
FREE = LadderRules(HEALING)


def plan_of(
    values: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    verbatim: tuple[str, ...] = (),
    device: str = "sm75",
    jobs: int | None = None,
) -> Plan:
    """The plan of two 2080 Ti and a hybrid 27B model, with `values` changed; `env` is users'."""
    base: dict[str, Any] = {
        "tensor_parallel_size": 2,
        "dtype": "half",
        "kv_cache_dtype": "fp8",
        "max_model_len": 262144,
        "gpu_memory_utilization": 0.868,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": True,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 4},
        "compilation_config": {"cudagraph_mode": "PIECEWISE"},
        "additional_config": {"caovan": True, "caovan_mode": "fast"},
        "disable_custom_all_reduce": True,
    }
    return Plan(
        model="/srv/models/m",
        settings={k: Setting(v, "policy", "") for k, v in {**base, **(values or {})}.items()},
        env={
            **({"MAX_JOBS": Setting(str(jobs), "policy", "")} if jobs else {}),
            **{k: Setting(v, "user", "") for k, v in (env or {}).items()},
        },
        verbatim=frozenset(verbatim),
        device=device,
    )


def found(failure: Failure, phase: str = "serving", **captures: str) -> Finding:
    return Finding(failure, f"said {failure}", phase, captures, signature="a.row")


def lowered(plan: Plan, finding: Finding, rules: LadderRules = FREE) -> Plan | None:
    """The next more modest plan once patience is over, None where nothing is left."""
    return decide(plan, finding, 99, rules).plan


def descent(plan: Plan, finding: Finding, rules: LadderRules = FREE) -> list[str]:
    """The rungs taken when the same thing fails again and again."""
    taken: list[str] = []
    while lower := lowered(plan, finding, rules):
        taken.append(lower.rungs[-1])
        plan = lower
        assert len(taken) < 100
    return taken


@pytest.mark.parametrize("failure", FAILURES)
def test_verbatim_values_that_are_no_plain_numbers_break_no_rung(failure: Failure) -> None:
    for context in ("auto", -1, "32k"):
        odd = {
            "max_model_len": context,
            "max_num_batched_tokens": "8k",
            "compilation_config": {"max_cudagraph_capture_size": "1k"},
        }
        for verbatim in (tuple(odd), ()):
            descent(plan_of(odd, verbatim=verbatim), found(failure, len="32000"))


# -- the tables -----------------------------------------------------------------------------


def test_every_failure_has_a_reaction_and_a_row_of_cures() -> None:
    assert set(REACTIONS) == set(FAILURES)
    assert {failure for failure, phase in CURES if phase == ANY} == set(FAILURES)


def test_rows_name_phases_and_rungs_that_exist_and_every_rung_is_of_use() -> None:
    assert {phase for _, phase in CURES} <= {ANY, "serving", *NAMES}
    rows = (*CURES.values(), *HEALING.precise.values())
    assert {name for names in rows for name in names} == set(HEALING.by_name)


@pytest.mark.parametrize("failure", FAILURES)
def test_what_only_the_operator_or_the_world_can_cure_has_no_rungs(failure: Failure) -> None:
    has_rungs = bool(CURES[(failure, ANY)])
    assert has_rungs == (REACTIONS[failure].kind in ("rung", "restart", "wait"))


def test_a_cache_too_small_never_lowers_the_share_and_a_full_card_never_raises_it() -> None:
    for (failure, phase), names in CURES.items():
        if failure in ("kv-cache-none", "kv-cache-short"):
            assert "gmu-down" not in names, phase
        if failure in ("device-oom-capture", "device-oom-run", "sampler-oom", "vram-busy"):
            assert "gmu-up" not in names, phase
        if failure in ("illegal-access", "hang", "shared-memory-limit", "plugin-error"):
            assert not {"gmu-up", "gmu-down", "batch", "context"} & set(names), phase


# -- one failure, rung by rung --------------------------------------------------------------


@pytest.mark.parametrize(
    ("finding", "rungs"),
    [
        (found("kv-cache-none", "kv"),
         ["gmu-up 0.898", "gmu-up 0.928", "gmu-up 0.958", "gmu-up 0.97", "batch 4096", "batch 2048",
          "mtp 3", "mtp 2", "mtp 1", "mtp off", "sequences 1", "eager", "offload 2", "offload 4",
          "offload 8"]),
        (found("device-oom-capture", "capture"),
         ["gmu-down 0.838", "gmu-down 0.808", "gmu-down 0.778",
          "graph-sizes 64", "graph-sizes 16", "graph-sizes 4",
          "mtp 3", "mtp 2", "mtp 1", "mtp off", "eager"]),
        (found("illegal-access"), ["mtp-safe 3", "plugin-off", "mtp-off off", "eager"]),
        (found("illegal-access", component="plugin"),
         ["plugin-off", "mtp-safe 3", "mtp-off off", "eager"]),
        (found("hang"), ["mtp-safe 3", "plugin-off", "mtp-off off", "p2p-off", "eager"]),
        (found("engine-died", component="prefix-cache"),
         ["prefix-caching-off", "mtp-safe 3", "plugin-off", "mtp-off off", "eager"]),
        (found("compile-cache-stale", "compile"), ["fresh-cache", "no-compile-cache", "eager"]),
        (found("collective-timeout"), ["p2p-off", "eager"]),
        (found("shared-memory-limit", required="81920"),
         ["attention FLASHINFER", "attention TRITON_ATTN", "attention FLEX_ATTENTION", "gdn",
          "plugin-off", "eager"]),
        (found("sampler-oom", "warmup", requests="2"),
         ["sequences 1", "gmu-down 0.838", "gmu-down 0.808", "gmu-down 0.778",
          "batch 4096", "batch 2048"]),
        (found("plugin-error"), ["plugin-off"]),
        (found("draft-collapse"), ["mtp-off off"]),
        (found("backend-unsupported", "load"),
         ["kv-dtype-plain auto", "attention FLASHINFER", "attention TRITON_ATTN",
          "attention FLEX_ATTENTION"]),
        (found("bad-arguments", "resolve"), []),
        (found("gpu-lost"), []),
    ],
    ids=lambda value: value.failure if isinstance(value, Finding) else None,
)  # fmt: skip
def test_the_way_down(finding: Finding, rungs: list[str]) -> None:
    assert descent(plan_of(), finding) == rungs


@pytest.mark.parametrize(
    "told", [{"compiler": "cicc"}, {"object": "a/sampling.cuda.o"}, {"name": "cc1plus"}]
)
def test_a_build_that_memory_did_not_hold_takes_fewer_compilers_first(
    told: dict[str, str],
) -> None:
    killed = found("host-oom", "warmup", **told)
    assert [decide(plan_of(jobs=12), killed, n, FREE).verdict for n in (1, 2)] == [
        "again",
        "degrade",
    ]
    rungs = ["jobs 6", "jobs 3", "jobs 1", "sequences 1", "mtp-off off"]
    assert descent(plan_of(jobs=12), killed) == rungs
    lower = lowered(plan_of(jobs=12), killed)
    assert lower is not None
    assert (lower.env["MAX_JOBS"].value, lower.env["MAX_JOBS"].origin) == ("6", "ladder")
    assert worth_remembering(lower)
    assert not lower.degraded


def test_another_lack_of_host_memory_is_no_matter_of_compilers() -> None:
    for told in ({}, {"name": "VLLM::Worker_TP"}):
        lack = found("host-oom", "load", **told)
        assert descent(plan_of(jobs=12), lack) == ["sequences 1", "mtp-off off"]


def test_the_operators_number_of_compilers_stays_and_is_named() -> None:
    killed = found("host-oom", "warmup", compiler="cicc")
    decision = decide(plan_of(env={"MAX_JOBS": "8"}), killed, 99, FREE)
    assert decision.rung == "sequences 1"
    assert decision.obstacles == (
        "cannot run fewer compilers at once (compiler jobs 8 -> 4): "
        "[engine] env sets MAX_JOBS; change or remove it",
    )
    for odd in ("auto", "", "1", "9" * 5000):
        decision = decide(plan_of(env={"MAX_JOBS": odd}), killed, 99, FREE)
        assert (decision.rung, decision.obstacles) == ("sequences 1", ())


def test_the_length_that_fits_is_used_in_whole_blocks() -> None:
    finding = found("kv-cache-short", "kv", len="262144", need="17.35", have="11.71", fits="175555")
    lower = lowered(plan_of(), finding)
    assert lower is not None
    assert lower.value("max_model_len") == 175552
    assert lower.settings["max_model_len"].origin == "ladder"
    assert "262144 -> 175552" in lower.settings["max_model_len"].reason
    assert lower.rungs == ("context 175552",)


def test_a_plan_without_a_length_uses_the_one_in_the_error() -> None:
    finding = found("kv-cache-short", "kv", len="131072", need="0.06", have="0.02", fits="32640")
    lower = lowered(plan_of({"max_model_len": None}, device="cpu"), finding)
    assert lower is not None
    assert lower.value("max_model_len") == 32640


def test_a_pinned_context_on_the_cpu_build_gets_the_memory_it_needs() -> None:
    plan = plan_of({"kv_cache_memory_bytes": 64 << 20}, device="cpu")
    finding = found("kv-cache-short", "kv", len="262144", need="0.2", have="0.06", fits="70000")
    lower = lowered(plan, finding, LadderRules(HEALING, pinned=frozenset({"max_model_len"})))
    assert lower is not None
    assert lower.value("kv_cache_memory_bytes") == 225 << 20


def test_a_full_graph_mode_becomes_piecewise_before_graphs_are_given_up() -> None:
    plan = plan_of({"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}})
    lower = lowered(plan, found("draft-collapse"))
    assert lower is not None
    assert lower.value("compilation_config") == {"cudagraph_mode": "PIECEWISE"}


def test_drafting_off_leaves_no_speculation_in_the_plan() -> None:
    plan = plan_of({"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}})
    lower = lowered(plan, found("hang", component="drafter"))
    assert lower is not None
    assert (lower.value("speculative_config"), lower.mtp) == (None, 0)


def test_the_plugin_leaves_and_other_plugins_stay() -> None:
    plan = plan_of(env={"VLLM_PLUGINS": "lora_resolver,caovan_vllm_sm75_turbo3"})
    listed = plan.env["VLLM_PLUGINS"]
    plan = Plan(plan.model, plan.settings, {"VLLM_PLUGINS": Setting(listed.value, "policy", "")})
    lower = lowered(plan, found("plugin-error", "resolve"))
    assert lower is not None
    assert lower.env["VLLM_PLUGINS"].value == "lora_resolver"


def test_memory_that_others_hold_is_shared_for_now_and_not_remembered() -> None:
    finding = found("vram-busy", "engine", free="12.9", total="22.0", wanted="19.1")
    decisions = [decide(plan_of(), finding, repeats, FREE) for repeats in (1, 2, 3, 4)]
    assert [decision.verdict for decision in decisions] == ["hold", "hold", "hold", "degrade"]
    lower = decisions[-1].plan
    assert lower is not None
    assert lower.value("gpu_memory_utilization") == 0.563
    assert not worth_remembering(lower)
    assert worth_remembering(plan_of())


# -- verdicts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "verdicts"),
    [
        ("bad-arguments", ["fail", "fail", "fail"]),
        ("model-missing", ["fail", "fail", "fail"]),
        ("gpu-lost", ["hold", "hold", "hold"]),
        ("port-busy", ["hold", "hold", "hold"]),
        ("network", ["again", "again", "again"]),
        ("illegal-access", ["again", "degrade", "degrade"]),
        ("hang", ["again", "degrade", "degrade"]),
        ("kv-cache-none", ["degrade", "degrade", "degrade"]),
        ("plugin-error", ["degrade", "degrade", "degrade"]),
        ("unknown", ["again", "again", "degrade"]),
    ],
)
def test_patience_with_failures_in_a_row(failure: Failure, verdicts: list[str]) -> None:
    told = [decide(plan_of(), found(failure), n, FREE).verdict for n in (1, 2, 3)]
    assert told == verdicts


def test_an_engine_that_was_killed_gets_more_patience_than_one_that_crashed() -> None:
    killed = Finding("engine-died", "the engine exited: killed by signal 9")
    crashed = found("engine-died")
    told = [
        [decide(plan_of(), f, n, FREE).verdict for n in (1, 2, 3, 4)] for f in (killed, crashed)
    ]
    assert told == [
        ["again", "again", "again", "degrade"],
        ["again", "degrade", "degrade", "degrade"],
    ]


# -- what the operator forbids --------------------------------------------------------------


def test_a_verbatim_flag_is_passed_over_and_named() -> None:
    finding = found("kv-cache-short", "kv", len="262144", need="17.3", have="11.7", fits="175552")
    decision = decide(plan_of(verbatim=("max_model_len",)), finding, 1, FREE)
    assert decision.rung == "gmu-up 0.898"
    assert decision.obstacles == (
        "cannot shorten the context (context 262144 -> 175552): "
        "--max-model-len is passed verbatim; change or remove it",
    )


def test_a_variable_of_the_operator_is_never_changed() -> None:
    plan = plan_of(env={"VLLM_PLUGINS": "caovan_vllm_sm75_turbo3"})
    decision = decide(plan, found("plugin-error", "resolve"), 1, FREE)
    assert decision.verdict == "fail"
    assert decision.text == (
        "cannot run without caovan's kernels (caovan's kernels off): "
        "[engine] env sets VLLM_PLUGINS; change or remove it"
    )


def test_a_pinned_key_stays() -> None:
    rules = rules_of(HEALING, PolicySection(pinned=("mtp",)))
    assert descent(plan_of(), found("hang"), rules) == ["plugin-off", "p2p-off", "eager"]


def test_only_listed_rungs_are_used() -> None:
    rules = rules_of(HEALING, PolicySection(ladder=("mtp-off",)))
    assert descent(plan_of(), found("hang"), rules) == ["mtp-off off"]


def test_strict_never_degrades_but_may_compile_anew() -> None:
    rules = rules_of(HEALING, PolicySection(strict=True))
    assert decide(plan_of(), found("kv-cache-none", "kv"), 1, rules).verdict == "fail"
    assert decide(plan_of(), found("hang"), 9, rules).verdict == "again"
    assert descent(plan_of(), found("compile-cache-stale"), rules) == ["fresh-cache"]


def test_a_full_disk_gives_up_nothing_and_is_named() -> None:
    for failure in ("unknown", "compile-cache-stale", "engine-died"):
        full = Finding(failure, "Errno 28", "load", {"path": "/var/x"}, "disk.full")  # type: ignore[arg-type]
        decision = decide(plan_of(), full, 99, FREE)
        assert (decision.verdict, decision.plan, decision.excused) == ("hold", None, True)
        assert decision.text == "waiting for space on the disk of /var/x; fix: free some (`df -h`)"


@pytest.mark.parametrize(
    ("failure", "words"), [("network", "the network"), ("node-lost", "all nodes")]
)
def test_what_passes_is_waited_for_without_end_and_named(failure: Failure, words: str) -> None:
    decision = decide(plan_of(), found(failure, "resolve"), 99, FREE)
    assert (decision.verdict, decision.excused) == ("again", True)
    assert decision.text == f"waiting for {words}, then the same plan again"


def test_every_wait_names_what_it_waits_for() -> None:
    named = {failure for failure, reaction in REACTIONS.items() if reaction.waits_for}
    assert named == {failure for failure, one in REACTIONS.items() if one.kind in ("hold", "retry")}


def test_no_step_leads_back_to_a_plan_that_failed() -> None:
    """Up because the cache was too small, then down because the graphs did not fit: not 0.868."""
    up = lowered(plan_of(), found("kv-cache-none", "kv"))
    assert up is not None
    assert up.rungs == ("gmu-up 0.898",)
    then = lowered(up, found("device-oom-capture", "capture"))
    assert then is not None
    assert then.rungs[-1] == "graph-sizes 64"


def test_no_rung_leads_to_what_cannot_run_on_the_machine() -> None:
    def refuses(plan: Plan) -> tuple[str, ...]:
        old = ("known before",)
        return (*old, "no fp8 here") if plan.value("kv_cache_dtype") == "fp8" else old

    plan = plan_of({"kv_cache_dtype": "auto", "attention_backend": "TRITON_ATTN"})
    short = found("kv-cache-short", "kv", len="262144")
    pinned = frozenset({"max_model_len", "gpu_memory_utilization"})
    assert descent(plan, short, LadderRules(HEALING, pinned=pinned))[0] == "kv-dtype fp8"
    assert (
        descent(plan, short, LadderRules(HEALING, pinned=pinned, conflicts=refuses))[0]
        == "batch 4096"
    )


@pytest.mark.parametrize("failure", ["jit-toolchain", "shared-memory-limit"])
def test_the_backend_that_failed_is_not_the_next_one(failure: Failure) -> None:
    said = Finding(failure, "flashinfer: cannot build", "load", {}, "a.row")
    taken = descent(plan_of(), said, LadderRules(HEALING, allowed=frozenset({"attention"})))
    assert taken == ["attention TRITON_ATTN", "attention FLEX_ATTENTION"]


@pytest.mark.parametrize(
    ("finding", "rung", "given"),
    [
        (found("backend-unsupported", "load"), "attention", {"attention_config": {}}),
        (found("device-oom-capture", "capture"), "graph-sizes", {"max_cudagraph_capture_size": 64}),
        (found("device-oom-capture", "capture"), "graph-sizes", {"cudagraph_capture_sizes": [1]}),
        (found("device-oom-capture", "capture"), "gmu-down", {"kv_cache_memory_bytes": 1 << 30}),
        (found("kv-cache-none", "kv"), "gmu-up", {"kv_cache_memory_bytes": 1 << 30}),
        (found("hang"), "mtp-off", {"spec_tokens": 4, "speculative_config": None}),
        (found("hang"), "mtp-off", {"spec_method": "mtp"}),
    ],
)
def test_flags_that_say_the_same_in_other_words_stand_in_the_way(
    finding: Finding, rung: str, given: dict[str, Any]
) -> None:
    name = next(iter(given))
    rules = LadderRules(HEALING, allowed=frozenset({rung}))
    decision = decide(plan_of(given, verbatim=(name,)), finding, 99, rules)
    assert decision.plan is None
    told = f"--{name.replace('_', '-')} is passed verbatim; change or remove it"
    assert any(told in obstacle for obstacle in decision.obstacles)


def test_a_context_too_short_for_anything_is_no_remedy() -> None:
    short = found("kv-cache-short", "kv", len="262144", fits="100")
    assert descent(plan_of(), short)[0] == "gmu-up 0.898"
    asked = lowered(plan_of({"max_model_len": 1024}), found("kv-cache-short", "kv", fits="800"))
    assert asked is not None
    assert asked.value("max_model_len") == 800


# -- properties -----------------------------------------------------------------------------

_NUMBERS = st.floats(0.01, 300_000).map(lambda n: f"{n:.2f}")
_FINDINGS = st.builds(
    Finding,
    st.sampled_from(FAILURES),
    st.just("text"),
    st.sampled_from((*NAMES, "serving")),
    st.dictionaries(st.sampled_from(("fits", "len", "need", "free", "total", "requests")), _NUMBERS)
    | st.fixed_dictionaries({"compiler": st.just("cicc")})
    | st.fixed_dictionaries({"component": st.sampled_from(("plugin", "drafter", "prefix-cache"))}),
    st.sampled_from(("", "a.row")),
)
_KEYS = ("mtp", "max_model_len", "gpu_memory_utilization", "cuda_graphs", "kv_cache_dtype")
_VERBATIM = ("speculative_config", "max_model_len", "compilation_config", "max_num_seqs")
_RULES = st.builds(
    LadderRules,
    st.just(HEALING),
    st.booleans(),
    st.frozensets(st.sampled_from(_KEYS)),
    st.none() | st.frozensets(st.sampled_from(list(HEALING.by_name))),
)
_PLANS = st.builds(
    lambda verbatim, device, jobs, chosen: plan_of(
        {**chosen, "kv_cache_memory_bytes": 1 << 30 if device == "cpu" else None},
        verbatim=tuple(verbatim),
        device=device,
        jobs=jobs,
    ),
    st.frozensets(st.sampled_from(_VERBATIM)),
    st.sampled_from(("sm75", "sm90", "cpu", "")),
    st.none() | st.integers(1, 512),
    st.fixed_dictionaries(
        {
            "max_model_len": st.none() | st.integers(16, 1_000_000),
            "max_num_seqs": st.none() | st.integers(1, 1024),
            "max_num_batched_tokens": st.none() | st.integers(16, 65536),
            "gpu_memory_utilization": st.none() | st.sampled_from((0.31, 0.868, 0.9, 0.98)),
            "speculative_config": st.none()
            | st.builds(dict, method=st.just("mtp"), num_speculative_tokens=st.integers(1, 8)),
        }
    ),
)


@examples(300)
@given(_PLANS, st.lists(_FINDINGS, min_size=1, max_size=8), _RULES)
def test_any_mixture_of_failures_reaches_the_end_of_the_ladder(
    plan: Plan, findings: list[Finding], rules: LadderRules
) -> None:
    first = plan
    stuck = step = 0
    while stuck < len(findings):
        lower = lowered(plan, findings[step % len(findings)], rules)
        step += 1
        if lower is None:
            stuck += 1
            continue
        stuck = 0
        assert lower.identity != plan.identity
        plan = lower
        assert len(plan.rungs) < 200
    assert len(set(plan.rungs)) == len(plan.rungs)
    for name in first.verbatim:
        assert plan.value(name) == first.value(name)
    if rules.strict:
        assert not plan.degraded
        assert {rung.split()[0] for rung in plan.rungs} <= {"fresh-cache", "jobs"}
    if "mtp" in rules.pinned:
        assert plan.mtp == first.mtp
    if "max_model_len" in rules.pinned:
        assert plan.value("max_model_len") == first.value("max_model_len")


@examples(300)
@given(_PLANS, _FINDINGS, _RULES, st.integers(1, 9))
def test_a_lower_plan_comes_with_its_words_and_nothing_else_does(
    plan: Plan, finding: Finding, rules: LadderRules, repeats: int
) -> None:
    decision = decide(plan, finding, repeats, rules)
    assert (decision.plan is not None) == (decision.verdict == "degrade")
    assert decision.text
    if decision.plan:
        assert decision.plan.rungs == (*plan.rungs, decision.rung)
    if REACTIONS[finding.failure].kind == "fatal":
        assert decision.verdict == "fail"


def test_no_share_is_lowered_for_an_allocation_that_none_would_hold() -> None:
    """One odd request may be the cause: the same plan again, and then smaller steps."""
    captures = {"wanted": "32768.00 GiB", "total": "139.80 GiB"}
    odd = Finding("device-oom-run", "out of memory", captures=captures, signature="oom.cuda")
    assert decide(plan_of(), odd, 1, FREE).verdict == "again"
    second = decide(plan_of(), odd, 2, FREE)
    assert second.rung.startswith("batch ")
    usual = replace(odd, captures={**captures, "wanted": "170.00 MiB"})
    assert decide(plan_of(), usual, 1, FREE).rung.startswith("gmu-down ")
