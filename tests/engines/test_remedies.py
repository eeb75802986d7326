"""From real logs to remedies: what the daemon would do after each of these failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from caovand.core.facts.inventory import EngineInfo
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision, LadderRules, decide
from caovand.core.plan import Plan, Setting
from caovand.engines.vllm.command import cache_key
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.log.cause import find_cause
from caovand.engines.vllm.log.explain import explain

LOGS = Path(__file__).parents[1] / "samples" / "logs"
RULES = LadderRules(HEALING)


def answers(log: str) -> list[Decision]:
    """The decisions on the first, second and third of these failures in a row."""
    text = (LOGS / f"{log}.log").read_text(encoding="utf-8")
    configured = explain(text).configured
    device = "cpu" if "-cpu-" in log else "sm90"
    settings = {name: Setting(value, "policy", "") for name, value in configured.items()}
    plan = Plan(model="m", settings=settings, env={}, device=device)
    finding = find_cause(text.split("\n"), "resolve")
    assert finding is not None
    return [decide(plan, finding, repeats, RULES) for repeats in (1, 2, 3)]


@pytest.mark.parametrize(
    ("log", "verdicts", "change"),
    [
        ("vllm-0.21.0-h200-kv_short", "degrade degrade degrade", "context 262144 -> 175552"),
        ("vllm-0.21.0-h200-kv_none", "degrade degrade degrade", "GPU memory share 0.37 -> 0.4"),
        ("vllm-0.21.0-h200-gmu_high", "hold hold hold", ""),
        ("vllm-0.32.0-cpu-fail_a_kv_small", "degrade degrade degrade", "context 131072 -> 32640"),
        ("vllm-0.32.0-cpu-fail_b_engine_idle", "again again again", ""),
        ("vllm-0.32.0-cpu-fail_badconfig", "fail fail fail", ""),
        ("vllm-0.32.0-cpu-fail_badjson", "fail fail fail", ""),
        ("vllm-0.32.0-cpu-fail_f_port", "hold hold hold", ""),
        ("vllm-0.32.0-cpu-fail_g_badpath", "fail fail fail", ""),
        ("vllm-0.32.0-cpu-fail_gated", "again again again", ""),
        ("vllm-0.32.0-cpu-fail_mrope", "again degrade degrade", "MTP 3 -> off"),
        ("vllm-0.32.0-cpu-fail_mtp_prefix", "again degrade degrade", "prefix caching off"),
        ("vllm-0.32.0-cpu-fail_plugin_load", "degrade degrade degrade", "caovan's kernels off"),
        ("vllm-0.32.0-cpu-fail_plugin_serve", "degrade degrade degrade", "caovan's kernels off"),
    ],
)
def test_the_remedy_for_a_real_failure(log: str, verdicts: str, change: str) -> None:
    decisions = answers(log)
    assert " ".join(decision.verdict for decision in decisions) == verdicts
    assert (decisions[-1].text if decisions[-1].plan else "") == change


def test_a_stale_compile_cache_is_left_for_a_new_one() -> None:
    stale = find_cause(
        ["AssertionError: expected size 7==9, stride 5120==5120 at dim=0"], "compile"
    )
    assert stale is not None
    plan = Plan(model="/srv/m", settings={}, env={}, device="sm75")
    degrade = decide(plan, stale, 1, RULES).plan
    assert degrade is not None
    engine = EngineInfo(python="python3", version="0.21.0", torch="2.11.0", build="cuda")
    assert cache_key(plan, engine) == "0.21.0-sm75-m-mtp0"
    assert cache_key(degrade, engine) == "0.21.0-sm75-m-mtp0-2"


def remedy(line: str, phase: str, **values: object) -> Decision:
    """What is done about a line that ends a start of a plan with these settings."""
    finding = find_cause([line], phase)
    assert finding is not None
    settings = {name: Setting(value, "policy", "") for name, value in values.items()}
    return decide(Plan(model="m", settings=settings, env={}, device="sm75"), finding, 1, RULES)


def test_a_disk_that_cannot_be_read_is_waited_for_and_costs_no_setting() -> None:
    for phase in ("load", "serving"):
        decision = remedy("OSError: [Errno 5] Input/output error", phase)
        assert (decision.verdict, decision.excused) == ("hold", True)
        assert decision.text.startswith("waiting for the disk to become readable")


def test_weights_that_the_card_cannot_run_are_no_reason_to_change_attention_or_cache() -> None:
    for line in (
        "ValueError: The quantization method fp8 is not supported for the current GPU.",
        "ValueError: Failed to find a kernel that can implement the WNA16 linear layer.",
    ):
        decision = remedy(line, "load", kv_cache_dtype="fp8", dtype="half")
        assert (decision.verdict, decision.plan) == ("fail", None)


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("pynvml.NVMLError_Unknown: Unknown Error", "hold"),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file", "hold"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file", "fail"),
        ("AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'", "fail"),
        ("ZeroDivisionError: integer modulo by zero", "fail"),
        ("json.decoder.JSONDecodeError: Extra data: line 2 column 1 (char 9)", "fail"),
        ("NotImplementedError: No compiled cutlass_scaled_mm for a compute capability", "fail"),
    ],
)
def test_what_only_the_operator_can_cure_costs_no_setting(line: str, verdict: str) -> None:
    decision = remedy(line, "load", kv_cache_dtype="fp8", dtype="half")
    assert (decision.verdict, decision.plan) == (verdict, None)


@pytest.mark.parametrize(
    "line",
    [
        "FAILED: [code=137] /cache/flashinfer/cached_ops/sampling/sampling.cuda.o",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "c++: fatal error: Killed signal terminated program cc1plus",
    ],
)
def test_a_build_that_was_killed_runs_fewer_compilers(line: str) -> None:
    failed = "RuntimeError: Ninja build failed. Ninja output:"
    finding = find_cause([failed, line, "ninja: build stopped: subcommand failed."], "warmup")
    assert finding is not None
    plan = Plan("m", {}, {"MAX_JOBS": Setting("8", "policy", "")}, device="sm75")
    assert decide(plan, finding, 2, RULES).text == "compiler jobs 8 -> 4"


def test_attention_that_was_not_built_is_left_for_another() -> None:
    line = "AttributeError: '_OpNamespace' '_vllm_fa2_C' object has no attribute 'varlen_fwd'"
    assert remedy(line, "load", dtype="half").text == "attention automatic -> FLASHINFER"


def test_a_quantization_that_needs_float16_gets_it() -> None:
    line = "ValueError: torch.bfloat16 is not supported for quantization method awq."
    assert remedy(line, "resolve").text == "activations auto -> half"


def test_a_split_that_the_model_does_not_allow_is_not_tried_again() -> None:
    line = "ValueError: Weight output_size_per_partition = 1 is not divisible by min_thread_n = 64."
    assert remedy(line, "load").verdict == "fail"


def test_what_old_engines_say_of_a_context_that_does_not_fit_is_used() -> None:
    line = (
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens "
        "that can be stored in KV cache (23456). Try"
    )
    assert remedy(line, "kv", max_model_len=32768).text == "context 32768 -> 23456"


def test_a_backend_that_names_other_reasons_costs_no_cache_type() -> None:
    says = "ValueError: Selected backend X is not valid for this configuration. Reason: ['{}']"
    told = {"kv_cache_dtype": "fp8", "attention_backend": "FLASHINFER"}
    capability = remedy(says.format("compute capability not supported"), "engine", **told)
    assert capability.text == "attention FLASHINFER -> TRITON_ATTN"
    assert remedy(says.format("kv_cache_dtype not supported"), "engine", **told).text == (
        "KV cache fp8 -> auto"
    )


@pytest.mark.parametrize("phase", ["resolve", "load", "drafter"])
def test_a_stall_of_what_reads_files_costs_no_graphs_and_in_the_model_no_drafting(
    phase: str,
) -> None:
    spec = {"method": "mtp", "num_speculative_tokens": 4}
    plan = Plan("m", {"speculative_config": Setting(spec, "policy", "")}, {}, device="sm90")
    decision = decide(plan, Finding("start-stall", "no progress", phase), 99, RULES)
    assert decision.text.startswith("MTP 4 -> off" if phase == "drafter" else "no rung")


def test_one_card_alone_is_not_told_how_to_talk_to_others() -> None:
    hung = Finding("collective-timeout", "NCCL error: unhandled")
    for sizes, expected in (({}, "CUDA graphs and compilation off"),
                            ({"tensor_parallel_size": 1}, "CUDA graphs and compilation off"),
                            ({"pipeline_parallel_size": 2}, "NCCL peer-to-peer off")):  # fmt: skip
        settings = {name: Setting(value, "policy", "") for name, value in sizes.items()}
        plan = Plan("m", settings, {}, device="sm75")
        assert decide(plan, hung, 99, RULES).text == expected
