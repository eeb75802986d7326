"""The answer to a finding: its certainty, what to change, and what caovan does by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.core.healing.answer import FailureAnswer
from caovand.core.healing.failure import FAILURES, Failure, Finding
from caovand.core.healing.ladder import REACTIONS, LadderRules
from caovand.core.plan import Plan, Setting
from caovand.engines.explaining.answer import answer_of
from caovand.engines.registry import MODULES, engine_of

VLLM = engine_of("vllm")


def vllm(finding: Finding, **settings: object) -> FailureAnswer:
    plan = Plan("/m", {k: Setting(v, "user", "") for k, v in settings.items()}, {}, device="cuda")
    return answer_of(VLLM, finding, plan, LadderRules(VLLM.healing))


@pytest.mark.parametrize(
    ("failure", "signature", "certainty"),
    [
        ("kv-cache-none", "oom.kv.none", "certain"),
        ("device-oom-run", "oom.cuda", "likely"),
        ("engine-died", "engine.lost", "effect"),
        ("unknown", "exception", "unknown"),
        ("unknown", "disk.full", "certain"),
        ("hang", "", "likely"),
        ("gpu-lost", "xid.lost", "certain"),
    ],
)
def test_how_sure_it_is_depends_on_the_text(
    failure: Failure, signature: str, certainty: str
) -> None:
    assert vllm(Finding(failure, "x", signature=signature, line=7)).certainty == certainty


def test_each_change_names_key_option_and_value() -> None:
    found = vllm(Finding("sampler-oom", "x", "warmup", signature="oom.sampler"), max_num_seqs=256)
    first, second, _ = found.changes
    assert (first.key, first.option, first.value) == ("max_num_seqs", "--max-num-seqs", 128)
    assert (second.key, second.value) == ("gpu_memory_utilization", 0.87)
    assert found.heals == "yes"
    assert found.how == (
        "sequences 256 -> 128; then sequences 128 -> 64; then sequences 64 -> 32, and so on"
    )


@pytest.mark.parametrize(
    ("failure", "heals", "how"),
    [
        ("bad-arguments", "no", "another start cannot help; the state is FAILED until"),
        ("gpu-lost", "waits", "for the lost card, then the same plan again"),
        ("network", "waits", "for the network, then the same plan again"),
        ("illegal-access", "yes", "the same plan again, once; then CUDA graphs"),
        (
            "vram-busy",
            "waits",
            "the same plan again, up to 3 times, repeated until the condition has passed",
        ),
        ("jit-toolchain", "yes", "FlashInfer's sampler off; then"),
        ("plugin-error", "yes", "caovan's kernels off"),
    ],
)
def test_what_caovan_does_by_itself_is_what_the_ladder_decides(
    failure: Failure, heals: str, how: str
) -> None:
    found = vllm(Finding(failure, "x", "serving"))
    assert found.heals == heals
    assert found.how.startswith(how)


def test_a_request_that_ends_an_engine_is_not_waited_for() -> None:
    found = vllm(Finding("engine-died", "x", "serving", signature="prompt.short"))
    assert (found.heals, found.how.partition(":")[0]) == ("yes", "the same plan again")


@pytest.mark.parametrize("name", ["llamacpp", "ollama", "sglang"])
def test_without_a_plan_the_ladder_is_named_and_not_what_defaults_allow(name: str) -> None:
    engine = engine_of(name)
    finding = Finding("illegal-access", "x", "serving")
    rungs = "; ".join(rung.does for rung in engine.healing.rungs_for(finding))
    found = answer_of(engine, finding)
    assert found.heals == "yes"
    assert found.how == f"the same plan again, once; then as far as the plan allows: {rungs}"


def test_a_pinned_key_is_no_remedy() -> None:
    finding = Finding("kv-cache-short", "x", "kv", {"fits": "4096"}, "oom.kv.len", 3)
    plan = Plan("/m", {"max_model_len": Setting(8192, "user", "")}, {})
    keys = frozenset(rung.key for rung in VLLM.healing.rungs if rung.key)
    found = answer_of(VLLM, finding, plan, LadderRules(VLLM.healing, pinned=keys))
    assert found.heals == "no"
    assert "[policy] pinned names max_model_len" in found.how


def test_where_the_engine_is_not_certain_nothing_is_promised() -> None:
    found = answer_of(None, Finding("device-oom-load", "x", signature="oom.cuda"))
    assert (found.heals, found.changes) == ("depends", ())
    assert answer_of(None, Finding("bad-arguments", "x")).heals == "no"


def test_a_server_that_refused_a_request_serves_on() -> None:
    refused = Finding("bad-arguments", "x", "serving", signature="args.context", line=1)
    found = vllm(refused)
    assert (found.heals, found.certainty) == ("no", "certain")
    assert "serves on" in found.how
    assert "FAILED" in vllm(replace(refused, phase="resolve")).how


@pytest.mark.parametrize(
    "refused",
    [
        Finding("bad-arguments", "x", "resolve", signature="args.context", line=1),
        Finding("bad-arguments", "400 As of transformers v4.44, default", signature="args.x"),
        Finding("bad-arguments", "x", "resolve", signature="llama.request.batch", line=1),
    ],
)
def test_a_refusal_in_an_excerpt_needs_no_start_before_it(refused: Finding) -> None:
    assert "serves on" in answer_of(engine_of("llamacpp"), refused).how


def test_a_command_that_ollama_refused_leaves_its_server_running() -> None:
    refused = Finding("bad-arguments", "x", "http", signature="ollama.model.newer", line=1)
    assert "serves on" in answer_of(engine_of("ollama"), refused).how
    ollama = engine_of("ollama")
    plan = Plan("m", {}, {}, device="cuda")
    assert "FAILED" in answer_of(ollama, refused, plan, LadderRules(ollama.healing)).how


def test_a_client_that_reaches_no_server_is_no_engine_s_failure() -> None:
    found = answer_of(None, Finding("network", "x", signature="client.refused", line=1))
    assert (found.heals, found.how) == ("no", "a client failed, and no engine that caovan runs")


def test_a_certificate_becomes_trusted_by_nobody_s_waiting() -> None:
    finding = Finding("network", "x509: unknown authority", signature="net.certificate", line=1)
    assert answer_of(engine_of("ollama"), finding).heals == "no"


@pytest.mark.parametrize("plan", [None, Plan("m", {}, {}, device="cuda")])
def test_an_engine_that_is_not_ours_has_no_state(plan: Plan | None) -> None:
    assert "FAILED" not in answer_of(VLLM, Finding("bad-arguments", "x", "resolve"), plan).how


def test_flashinfer_is_no_remedy_on_a_card_older_than_it_supports() -> None:
    text = "Bfloat16 is only supported on {}. Your Tesla V100 GPU has compute capability 7.0."
    finding = Finding("backend-unsupported", text, "load", signature="feature.card", line=1)
    assert all(change.value != "FLASHINFER" for change in vllm(finding).changes)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("failure", FAILURES)
def test_there_is_an_answer_for_every_failure_of_every_engine(name: str, failure: Failure) -> None:
    found = answer_of(engine_of(name), Finding(failure, "x", "load"))
    assert found.why
    assert found.how
    if REACTIONS[failure].kind == "fatal":
        assert found.heals == "no"
