"""What counts as evidence in vLLM's log, beyond the words of one line."""

from __future__ import annotations

import pytest

from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import LadderRules, decide
from caovand.core.plan import Plan, Setting
from caovand.engines.vllm.healing.advice import advise
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.log.cause import find_cause
from caovand.engines.vllm.log.explain import explain

CONFIGURING = (
    "(APIServer pid=3) INFO 11-20 09:13:01 [api_server.py:1] vLLM API server version 0.32.0\n"
    "(APIServer pid=3) Traceback (most recent call last):\n"
    '(APIServer pid=3)   File "/opt/vllm/engine/arg_utils.py", line 7, in create_engine_config\n'
    '(APIServer pid=3)   File "/opt/vllm/{}", line 7, in f\n'
    "(APIServer pid=3) {}\n"
)


@pytest.mark.parametrize(
    ("file", "error", "component"),
    [
        ("config/model.py", "ValueError: a new refusal", "configuration"),
        ("transformers_utils/config.py", "KeyError: 'new_key'", "configuration"),
        ("transformers_utils/config.py", "OSError: [Errno 101] Network is unreachable", ""),
        ("config/model.py", "RuntimeError: the card is odd", ""),
    ],
)
def test_what_its_configuration_refuses_is_not_tried_again(
    file: str, error: str, component: str
) -> None:
    finding = find_cause(CONFIGURING.format(file, error).split("\n"), "resolve")
    assert finding is not None
    assert finding.captures.get("component", "") == component
    assert finding.failure == ("bad-arguments" if component else "unknown")
    verdict = decide(Plan("m", {}, {}, "sm75"), finding, 1, LadderRules(HEALING)).verdict
    assert verdict == ("fail" if component else "again")


UP = "(APIServer pid=3) INFO:     Application startup complete.\n"
ANSWER = '(APIServer pid=3) INFO:     10.0.0.1:5000 - "POST /v1/completions HTTP/1.1" 200 OK\n'
MISFIT = (
    "(EngineCore pid=5) ERROR 11-20 09:14:00 [core.py:1] EngineCore encountered a fatal error.\n"
    '(EngineCore pid=5) ERROR 11-20 09:14:00 [core.py:1]   File "/x/spec_decode/a.py", line 1\n'
    "(EngineCore pid=5) ERROR 11-20 09:14:00 [core.py:1] RuntimeError: The size of tensor a (7)"
    " must match the size of tensor b (8) at non-singleton dimension 1\n"
)


@pytest.mark.parametrize(
    ("log", "component"), [(UP, "shape"), (UP + ANSWER, "drafter"), ("", "drafter")]
)
def test_the_first_request_that_fails_by_shape_is_no_fault_of_drafting(
    log: str, component: str
) -> None:
    finding = find_cause((log + MISFIT).split("\n"), "serving")
    assert finding is not None
    assert finding.captures["component"] == component


def test_a_library_s_own_explanation_outranks_its_consequence() -> None:
    """Also where it is printed raw, in words that are no exception."""
    finding = find_cause([
        "torch.distributed.DistBackendError: NCCL error in: x.hpp:268, unhandled system error",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed.",
        "Last error:",
        "Call to bind failed: Cannot assign requested address",
    ], "engine")  # fmt: skip
    assert finding is not None
    assert (finding.signature, finding.line) == ("nccl.network", 4)


def test_an_exception_without_words_is_known_by_its_code() -> None:
    finding = find_cause([
        '  File "/opt/vllm/model_executor/layers/mamba/ops/causal_conv1d.py", line 1162, in update',
        "    assert num_cache_lines >= batch",
        "           ^^^^^^^^^^^^^^^^^^^^^^^^",
        "AssertionError",
    ], "capture")  # fmt: skip
    assert finding is not None
    assert (finding.failure, finding.signature) == ("kv-cache-short", "states.short")


def plan_of(**values: object) -> Plan:
    settings = {name: Setting(value, "policy", "") for name, value in values.items()}
    return Plan("m", settings, {}, "sm90")


@pytest.mark.parametrize(
    ("line", "plan", "change"),
    [
        ("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856).",
         plan_of(max_num_seqs=1024), "sequences 1024 -> 856"),
        ("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856).",
         plan_of(), "sequences vLLM's default -> 856"),
        ("ValueError: too much. Please reduce max_num_batched_tokens to at most 8192.",
         plan_of(max_num_batched_tokens=16384), "max_num_batched_tokens 16384 -> 8192"),
        ("ValueError: too much. Please reduce max_num_batched_tokens to at most 8192.",
         plan_of(max_num_batched_tokens=4096), ""),
        ("ValueError: too much. Please reduce some_other_thing to at most 8192.", plan_of(), ""),
    ],
)  # fmt: skip
def test_a_text_that_names_the_value_is_answered_by_it_at_once(
    line: str, plan: Plan, change: str
) -> None:
    finding = find_cause([line], "capture")
    assert finding is not None
    decision = decide(plan, finding, 1, LadderRules(HEALING))
    assert (decision.verdict, decision.text if change else "") == (
        ("degrade", change) if change else ("fail", "")
    )


def test_a_full_dev_shm_is_waited_for_with_its_remedy() -> None:
    line = "Error while creating shared memory segment /dev/shm/nccl-F9ffgB (size 9637888)"
    finding = find_cause([line], "engine")
    assert finding is not None
    assert finding.failure == "shm-full"
    assert decide(plan_of(), finding, 1, LadderRules(HEALING)).verdict == "hold"
    assert "--shm-size" in advise(finding, {})[0]


def test_advice_lists_what_the_plan_in_the_log_can_change_and_what_was_passed() -> None:
    finding = Finding("device-oom-run", "text", "serving", {}, "oom.cuda")
    anything = "\n".join(advise(finding, {}))
    assert "(mtp)" in anything
    assert "(cuda_graphs)" in anything
    told = advise(finding, {}, plan_of(enforce_eager=True, gpu_memory_utilization=0.95))
    assert told[1] == (
        "These were passed to the engine and matter here: --gpu-memory-utilization 0.95."
    )
    assert "(mtp)" not in told[2]
    assert "(cuda_graphs)" not in told[2]


def test_the_arguments_in_the_log_are_that_plan() -> None:
    told = explain(
        "(APIServer pid=1) INFO 11-20 09:00:00 [utils.py:1] non-default args: {'model': '/m', "
        "'kv_cache_dtype': 'fp8'}\n"
        "(EngineCore pid=2) ERROR 11-20 09:00:09 [core.py:1] ValueError: type fp8e4nv not "
        "supported in this architecture.\n"
    )
    assert "matter here: --kv-cache-dtype fp8." in told.advice[2]
    assert "store the KV cache in more bits" in told.advice[3]


def test_lines_without_time_or_number_are_vllm_s_too() -> None:
    told = explain(
        "INFO  [kv_cache_utils.py]  GPU KV cache size: 150,745 tokens\n"
        "INFO 11-20 [odd.py:1] text\n"
        "(EngineCore) ERROR [core.py:1138] EngineCore failed to start.\n"
        "(EngineCore) ERROR [core.py:1138] KeyError: 'layers.0.mlp.experts.w2_weight'\n"
    )
    assert told.finding is not None
    assert (told.finding.failure, told.finding.phase) == ("model-missing", "kv")


REASON = (
    "  Value error, rope_scaling should have a 'rope_type' key [type=value_error, input_value=1]"
)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((REASON,), "rope_scaling should have a 'rope_type' key"),
        (("  Assertion failed, no config is set [type=assertion_error, input_value=1]",),
         "no config is set"),
        (("max_model_len", "  Input should be greater than 0 [type=greater_than, input_value=-1]"),
         "Input should be greater than 0"),
    ],
)  # fmt: skip
def test_the_reason_of_a_validation_is_the_cause_and_stands_in_the_advice(
    lines: tuple[str, ...], reason: str
) -> None:
    refused = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"
    finding = find_cause([refused, *lines], "resolve")
    assert finding is not None
    assert (finding.failure, finding.signature) == ("bad-arguments", "args.value")
    assert advise(finding, {})[0] == f"vLLM refused its configuration: {reason}."
    alone = find_cause([refused], "resolve")
    assert alone is not None
    assert alone.signature == "args.refused"


def test_a_capture_without_its_log_is_known_by_its_frames() -> None:
    finding = find_cause([
        "Traceback (most recent call last):",
        '  File "/opt/vllm/compilation/backends.py", line 681, in __call__',
        '  File "/opt/torch/cuda/graphs.py", line 84, in capture_end',
        "RuntimeError: CUDA error: out of memory",
    ], "resolve")  # fmt: skip
    assert finding is not None
    assert finding.failure == "device-oom-capture"


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("TypeError: A.__init__() got an unexpected keyword argument 'sinks'",
         "A.__init__ does not accept the argument sinks"),
        ("TypeError: begin_forward() missing 1 required positional argument: 'page_size'",
         "begin_forward is called without 'page_size'"),
        ("AttributeError: module 'flashinfer' has no attribute 'x'", "flashinfer has no x"),
        ("ValueError: num_steps=4 cannot be other than 1",
         "The engine rejects a setting: num_steps"),
        ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
         "compute mode is Default"),
        ("RuntimeError: CUDA error: peer access is not supported between these two devices",
         "NCCL_P2P_DISABLE=1"),
    ],
)  # fmt: skip
def test_a_family_of_exceptions_says_what_is_certain(line: str, remedy: str) -> None:
    finding = find_cause([line], "engine")
    assert finding is not None
    assert remedy in advise(finding, {})[0]


def test_an_architecture_whose_code_cannot_be_imported_is_not_called_unknown() -> None:
    """Its reason, where it is printed, is the cause."""
    failed = "ValueError: Model architectures ['A'] failed to be inspected. Please check the logs"
    reason = "ERROR 11-20 09:00:00 [registry.py:415] ImportError: libcudart.so.12: cannot open"
    alone, with_reason = find_cause([failed], "resolve"), find_cause([reason, failed], "resolve")
    assert alone is not None
    assert with_reason is not None
    assert advise(alone, {})[0].startswith("vLLM could not import its own code for A")
    assert with_reason.line == 1
