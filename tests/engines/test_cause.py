"""From a log to the first cause in the failing process."""

from __future__ import annotations

import textwrap

import pytest

from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import LadderRules, decide
from caovand.core.plan import Plan, Setting
from caovand.engines.common.logs.rows.kernel import find_in_kernel
from caovand.engines.vllm.healing.advice import advise
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.log.cause import find_cause
from caovand.engines.writer import explain_log

MANY = 2000  # lines
DRAFTS = {"method": "mtp", "num_speculative_tokens": 4}
WORKER = "(Worker_TP0 pid=7) ERROR 11-20 09:00:00 [multiproc_executor.py:962] "
CORE = "(EngineCore pid=5) ERROR 11-20 09:00:00 [core.py:1140] "
SERVER = "(APIServer pid=3) ERROR 11-20 09:00:00 [async_llm.py:704] "
ILLEGAL = f"{CORE}torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
READY = "(APIServer pid=3) INFO:     Application startup complete."
LOADING = "(Worker_TP0 pid=7) INFO 11-20 08:59:00 [gpu_model_runner.py:1] Starting to load model m"
CAPTURING = "(Worker_TP0 pid=7) Capturing CUDA graphs (decode, FULL):  50%|###  | 1/2 [00:00<00:00]"


def cause(text: str, phase: str = "serving") -> Finding:
    finding = find_cause(textwrap.dedent(text).strip("\n").split("\n"), phase)
    assert finding is not None
    return finding


def raised(phase: str, path: str, function: str, error: str) -> Finding:
    """The cause of a start that ended with `error` in a function of `path`, after line `phase`."""
    return cause(f"""
{phase}
{CORE}EngineCore failed to start.
{CORE}Traceback (most recent call last):
{CORE}  File "{path}", line 9, in {function}
{CORE}{error}
""")


def test_wrappers_are_looked_through_to_the_worker() -> None:
    finding = cause(f"""
{READY}
{WORKER}WorkerProc hit an exception.
{WORKER}Traceback (most recent call last):
{WORKER}  File "/opt/engine/vllm/v1/worker/gpu_model_runner.py", line 9, in execute_model
{WORKER}torch.AcceleratorError: CUDA error: an illegal memory access was encountered
{CORE}EngineCore encountered a fatal error.
{CORE}RuntimeError: Worker failed with error 'CUDA error: an illegal memory access', please check
{SERVER}AsyncLLM output_handler failed.
{SERVER}vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.
""")
    assert (finding.failure, finding.phase, finding.line) == ("illegal-access", "serving", 5)


def test_the_phase_is_that_of_the_line_not_of_the_end() -> None:
    oom = f"{WORKER}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0"
    assert cause(f"{LOADING}\n{oom}").failure == "device-oom-load"
    assert cause(f"{LOADING}\n{CAPTURING}\n{oom}").failure == "device-oom-capture"
    assert cause(f"{LOADING}\n{CAPTURING}\n{READY}\n{oom}").failure == "device-oom-run"


def test_what_is_compiled_while_serving_is_no_new_start() -> None:
    late = (
        "(EngineCore pid=5) INFO 11-20 09:00:00 [monitor.py:53] torch.compile took 3.40 s in total"
    )
    oom = f"{WORKER}torch.OutOfMemoryError: CUDA out of memory."
    assert cause(f"{LOADING}\n{READY}\n{late}\n{oom}").failure == "device-oom-run"


def test_without_marks_the_given_phase_counts() -> None:
    oom = f"{WORKER}torch.OutOfMemoryError: CUDA out of memory."
    assert cause(oom, "load").failure == "device-oom-load"


def test_what_ran_out_of_memory_is_named_better_by_the_error_that_follows() -> None:
    finding = cause(f"""
{CAPTURING}
{WORKER}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 298.00 MiB.
{WORKER}The above exception was the direct cause of the following exception:
{WORKER}RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests.
""")
    assert (finding.failure, finding.captures["requests"]) == ("sampler-oom", "256")


def after_cublas(lines: int, then: str) -> Finding:
    """Of a fault that first surfaces as a library's status, and is named so many lines later."""
    status = "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"
    frames = "\n".join(f'{CORE}  File "/opt/vllm/a.py", line {n}, in f' for n in range(lines - 2))
    return cause(
        f"{READY}\n{CORE}EngineCore encountered a fatal error.\n{CORE}RuntimeError: {status}\n"
        f"{frames}\n{SERVER}AsyncLLM output_handler failed.\n{then}"
    )


@pytest.mark.parametrize(
    ("then", "failure"),
    [
        (ILLEGAL, "illegal-access"),
        (
            "terminate called after throwing an instance of 'c10::AcceleratorError'\n"
            "  what():  CUDA error: an illegal memory access was encountered",
            "illegal-access",
        ),
        (
            "[rank0]:[E1120 09:00:00.1 ProcessGroupNCCL.cpp:1] [PG ID 2] Process group watchdog"
            " thread terminated with exception: CUDA error: unspecified launch failure",
            "launch-failure",
        ),
        # What fails after it, and for another reason, explains nothing.
        (f"{CORE}RuntimeError: Engine core initialization failed.", "launch-failure"),
        (
            f"{CORE}OSError: [Errno 98] error while binding: Address already in use",
            "launch-failure",
        ),
    ],
)
def test_a_fault_that_surfaces_as_a_librarys_status_is_what_is_named_later(
    then: str, failure: str
) -> None:
    finding = after_cublas(130, then)
    assert finding.failure == failure
    assert ("CUBLAS" in finding.text) == (finding.signature == "cublas.failed")
    assert after_cublas(130, "").signature == "cublas.failed"


@pytest.mark.parametrize(
    "line",
    [
        f"{CORE}Worker proc VllmWorker-1 died unexpectedly (exit code: -4), shutting down.",
        f"{SERVER}RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {'EngineCore_DP0': -4}",
    ],
)
@pytest.mark.parametrize("phase", ["warmup", "serving"])
def test_a_process_that_an_illegal_instruction_ended_is_named_and_its_plan_tried_again(
    line: str, phase: str
) -> None:
    finding = cause(line, phase)
    assert finding.failure == "engine-died"
    assert finding.text.endswith("[SIGILL, an illegal instruction]")
    rules = LadderRules(HEALING)
    assert [decide(Plan("m", {}, {}), finding, n, rules).verdict for n in (1, 2, 3)] == [
        "again", "again", "again",
    ]  # fmt: skip
    assert any("SIGILL" in advice for advice in advise(finding, {}))


def test_a_process_that_was_killed_is_not_said_to_have_met_a_fault() -> None:
    line = f"{CORE}Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down."
    assert "fault" not in cause(line).captures
    assert not any("fault" in advice for advice in advise(cause(line), {}))


UNEVEN = "RuntimeError: The size of tensor a (7) must match the size of tensor b (6) at dimension 1"
GATED = "/opt/engine/vllm/model_executor/layers/mamba/ops/cpu/gdn_attention.py"


@pytest.mark.parametrize(("file", "ours"), [(GATED, True), ("/opt/engine/vllm/a.py", False)])
def test_drafts_of_different_lengths_in_a_step_are_the_drafters_on_the_cpu_build(
    file: str, ours: bool
) -> None:
    finding = cause(f"""
{READY}
{WORKER}WorkerProc hit an exception.
{WORKER}Traceback (most recent call last):
{WORKER}  File "{file}", line 556, in _spec_forward
{WORKER}    B.copy_(new_B)
{WORKER}{UNEVEN}
{CORE}EngineCore encountered a fatal error.
""")
    assert (finding.failure, finding.signature == "drafts.uneven") == ("engine-died", ours)
    plan = Plan("m", {"speculative_config": Setting(DRAFTS, "user", "")}, {})
    rules = LadderRules(HEALING)
    assert decide(plan, finding, 1, rules).verdict == "again"
    second = decide(plan, finding, 2, rules)
    assert (second.rung == "mtp-off off") is ours
    assert any("JSON answers" in advice for advice in advise(finding, {})) is ours


def test_a_prompt_of_one_token_is_named_and_no_plan_is_blamed_for_it() -> None:
    finding = cause(f"""
{READY}
{WORKER}WorkerProc hit an exception.
{WORKER}RuntimeError: causal_conv1d_fwd_cpu: expect x to be transposed
""")
    assert (finding.failure, finding.signature) == ("engine-died", "prompt.short")
    for repeats in (1, 2, 9):
        decision = decide(Plan("m", {}, {}), finding, repeats, LadderRules(HEALING))
        assert (decision.verdict, decision.excused) == ("again", True)
    assert any("two tokens or more" in advice for advice in advise(finding, {}))


def test_of_two_ranks_the_first_to_fail_is_the_cause() -> None:
    finding = cause(f"""
{READY}
[rank1]:[E1120 09:00:00.1 ProcessGroupNCCL.cpp:1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)
{WORKER}torch.AcceleratorError: CUDA error: unspecified launch failure
""")  # noqa: E501
    assert finding.failure == "launch-failure"


def test_a_timeout_between_ranks_is_the_cause_where_nothing_else_is() -> None:
    finding = cause(f"""
{READY}
[rank1]:[E1120 09:00:00.1 ProcessGroupNCCL.cpp:1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)
{CORE}EngineCore encountered a fatal error.
""")  # noqa: E501
    assert (finding.failure, finding.captures["operation"]) == ("collective-timeout", "ALLREDUCE")


def test_a_hung_worker_is_proven_by_the_call_that_timed_out() -> None:
    finding = cause(f"""
{READY}
{CORE}EngineCore encountered a fatal error.
{CORE}Traceback (most recent call last):
{CORE}TimeoutError
{CORE}The above exception was the direct cause of the following exception:
{CORE}TimeoutError: RPC call to execute_model timed out.
""")
    assert (finding.failure, finding.captures["call"]) == ("hang", "execute_model")


def test_an_exception_no_row_knows_is_named() -> None:
    finding = cause(f"""
{READY}
{WORKER}WorkerProc hit an exception.
{WORKER}TypeError: 'function' object is not subscriptable
{CORE}Worker proc VllmWorker-0 died unexpectedly (exit code: 1), shutting down executor.
""")
    assert finding.failure == "engine-died"
    assert finding.text == "TypeError: 'function' object is not subscriptable"


def test_an_exception_without_a_message_is_told_by_where_it_was_raised() -> None:
    """Another worker's traceback may be printed in between."""
    found = cause(f"""
{LOADING}
{CORE}EngineCore failed to start.
{CORE}Traceback (most recent call last):
{CORE}  File "/x/vllm/model_executor/layers/rotary_embedding/__init__.py", line 103, in get_rope
{CORE}    rotary_emb = MRotaryEmbedding(
{CORE}                 ^^^^^^^^^^^^^^^^^
{CORE}  File "/x/vllm/model_executor/layers/rotary_embedding/mrope.py", line 251, in __init__
{CORE}    assert sum(self.mrope_section) == rotary_dim // 2
{WORKER}  File "/x/other.py", line 7, in f
{CORE}           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
{CORE}AssertionError
""")
    assert (found.failure, found.phase) == ("bad-arguments", "load")
    assert found.text == (
        "AssertionError at rotary_embedding/mrope.py:251: "
        "assert sum(self.mrope_section) == rotary_dim // 2"
    )
    without = cause(f"{LOADING}\n{CORE}EngineCore failed to start.\n{CORE}AssertionError")
    assert without.text == "AssertionError"


def test_an_exception_while_starting_that_no_row_knows_is_unknown() -> None:
    finding = cause(f"{LOADING}\n{CORE}EngineCore failed to start.\n{CORE}KeyError: 'w'")
    assert (finding.failure, finding.phase) == ("unknown", "load")


@pytest.mark.parametrize(
    ("path", "failure", "component"),
    [
        ("site-packages/caovan_vllm_sm75_turbo3/ops.py", "plugin-error", "plugin"),
        ("site-packages/vllm/plugins/__init__.py", "plugin-error", "plugin"),
        ("site-packages/torch/_inductor/compile_fx.py", "compile-failed", "compiler"),
        ("site-packages/vllm/v1/spec_decode/eagle.py", "engine-died", "drafter"),
        ("site-packages/vllm/v1/worker/mamba_utils.py", "engine-died", "prefix-cache"),
    ],
)
def test_a_traceback_tells_whose_code_failed(path: str, failure: str, component: str) -> None:
    finding = cause(f"""
{READY}
{WORKER}WorkerProc hit an exception.
{WORKER}Traceback (most recent call last):
{WORKER}  File "/opt/{path}", line 9, in f
{WORKER}    raise KeyError(3)
{WORKER}KeyError: 3
""")
    assert (finding.failure, finding.captures["component"]) == (failure, component)


def test_an_illegal_access_in_our_operators_says_so() -> None:
    finding = cause(f"""
{READY}
{WORKER}Traceback (most recent call last):
{WORKER}  File "/opt/caovan_vllm_sm75_turbo3/ops.py", line 9, in gdn
{WORKER}  File "/opt/torch/a.py", line 1, in a
{WORKER}  File "/opt/torch/a.py", line 1, in b
{WORKER}  File "/opt/torch/a.py", line 1, in c
{WORKER}  File "/opt/torch/a.py", line 1, in d
{WORKER}torch.AcceleratorError: CUDA error: an illegal memory access was encountered
""")
    assert (finding.failure, finding.captures["component"]) == ("illegal-access", "plugin")


def test_what_a_client_does_wrong_is_no_failure_of_the_engine() -> None:
    server = "(APIServer pid=3) ERROR 11-20 09:00:00 [serving_chat.py:1145] "
    log = f"""
{READY}
{server}Error in preprocessing prompt inputs
{server}Traceback (most recent call last):
{server}ValueError: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate
{server}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0
ERROR:    Exception in ASGI application
Traceback (most recent call last):
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0
INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error
"""
    assert find_cause(log.split("\n"), "serving") is None


ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
FATAL = f"{CORE}EngineCore encountered a fatal error.\n{CORE}{ILLEGAL}"
HUB = "(APIServer pid=3) ERROR 11-20 08:50:00 [repo_utils.py:126] Error retrieving safetensors: "


def test_a_cause_is_found_however_much_follows_it() -> None:
    quiet = "(EngineCore pid=5) INFO 11-20 09:00:00 [loggers.py:271] Engine 000: idle\n" * MANY
    request = (
        f"{SERVER}Error with a request\n{SERVER}vllm.v1.engine.exceptions.EngineDeadError: x\n"
    )
    finding = cause(f"{READY}\n{quiet}{FATAL}\n{request * MANY}")
    assert (finding.failure, finding.line) == ("illegal-access", MANY + 3)


@pytest.mark.parametrize(
    "dealt_with",
    [
        f"{HUB}Repo id must be in the form 'repo_name': '/srv/m'., retrying 1 of 2",
        f"{HUB}503 Server Error: Service Temporarily Unavailable for url: x, retrying 1 of 2",
        f"{HUB}Cannot reach https://huggingface.co/api: offline mode is enabled.",
        f"{WORKER}[Autotuner]: Failed when profiling: torch.OutOfMemoryError: CUDA out of memory.",
        f"{SERVER}Failed to load plugin lora_resolver\n{SERVER}Traceback (most recent call last):\n"
        f'{SERVER}  File "/v/vllm/plugins/__init__.py", line 48, in load\n'
        f"{SERVER}RepositoryNotFoundError: x",
    ],
)
def test_what_the_engine_dealt_with_is_no_cause(dealt_with: str) -> None:
    assert find_cause(dealt_with.split("\n"), "resolve") is None
    assert cause(f"{dealt_with}\n{LOADING}\n{FATAL}", "resolve").failure == "illegal-access"
    assert find_cause(f"{dealt_with}\n{LOADING}\n{READY}".split("\n"), "resolve") is None


def test_what_came_before_it_served_is_no_cause() -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"
    assert find_cause(f"{LOADING}\n{oom}\n{READY}".split("\n")) is None
    assert cause(f"{LOADING}\n{oom}\n{READY}\n{FATAL}").failure == "illegal-access"


def test_the_cause_near_the_wrapper_counts_before_an_older_one() -> None:
    old = (
        "requests.exceptions.ConnectTimeout: HTTPSConnectionPool: Max retries exceeded with url: /x"
    )
    quiet = "(EngineCore pid=5) INFO 11-20 09:00:00 [loggers.py:271] idle\n" * 100
    assert cause(f"{LOADING}\n{old}\n{quiet}{FATAL}").failure == "illegal-access"
    assert cause(f"{LOADING}\n{old}\n{quiet}{CORE}EngineCore failed to start.").failure == "network"
    unnamed = f"{CORE}EngineCore failed to start.\n{CORE}KeyError: 'w'"
    assert cause(f"{LOADING}\n{old}\n{quiet}{unnamed}").failure == "unknown"


@pytest.mark.parametrize(("distance", "failure"), [(60, "network"), (61, "illegal-access")])
def test_the_first_cause_of_the_sixty_lines_before_the_wrapper_counts(
    distance: int, failure: str
) -> None:
    """A traceback through the compiler has so many lines; what is older led to something else."""
    hub = "requests.exceptions.ConnectTimeout: Max retries exceeded with url: /x"
    quiet = ["(EngineCore pid=5) INFO 11-20 09:00:00 [loggers.py:271] idle"] * (distance - 2)
    failed = f"{CORE}EngineCore failed to start."
    assert cause("\n".join([LOADING, hub, *quiet, ILLEGAL, failed])).failure == failure


@pytest.mark.parametrize(
    "text",
    [
        f"{CORE}Unexpected error pre-processing request chatcmpl-GatedRepoError-9f1c\n"
        f"{CORE}Traceback (most recent call last):\n{CORE}GatedRepoError: x",
        f"{CORE}Failed to advance FSM for request cmpl-No CUDA GPUs are available for tokens 33.",
        f"{CORE}Something else of request cmpl-No CUDA GPUs are available",
        f"{CORE}Something else of request cmpl-EngineDeadError",
        "Task exception was never retrieved\nfuture: <Task finished>\n"
        "Traceback (most recent call last):\n"
        "requests.exceptions.ConnectTimeout: Max retries exceeded with url: /a.png\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\nConnectionError: Max retries exceeded with url: /a",
    ],
)
def test_what_a_client_chose_is_no_cause(text: str) -> None:
    assert find_cause(f"{READY}\n{text}".split("\n")) is None
    finding = cause(f"{READY}\n{text}\n{FATAL}")
    assert (finding.failure, finding.text) == ("illegal-access", ILLEGAL)
    raw = f"Process VllmWorker-0:\nTraceback (most recent call last):\n{ILLEGAL}"
    assert cause(f"{READY}\n{text}\n{raw}").failure == "illegal-access"


def test_a_task_of_the_engines_own_loop_that_nobody_awaited_is_a_cause() -> None:
    """Its traceback counts, and without one the exception that its representation quotes."""
    raised = "RuntimeError: Failed to find C compiler. Please specify via CC."
    header = (
        "Future exception was never retrieved\nfuture: <Future finished exception="
        "RuntimeError('Failed to find C compiler. Please specify via CC.')>\n"
    )
    loop = "/x/vllm/engine/async_llm_engine.py"
    frames = f'  File "{loop}", line 29, in _raise_exception_on_finish\n    task.result()\n'
    trace = f"Traceback (most recent call last):\n{frames}"
    for text in (f"{header}{trace}{raised}", f"{header}{raised}"):
        assert cause(text).failure == "jit-toolchain"
    for text in (header, f"{header}{trace}"):
        found = explain_log(text)
        assert found is not None
        assert found[1].finding is not None
        assert found[1].finding.failure == "jit-toolchain"


def test_an_index_error_while_compiling_is_the_compilers() -> None:
    compiling = "(EngineCore pid=5) INFO 11-20 08:59:00 [backends.py:1] Using cache directory: /c"
    failed = f"{CORE}EngineCore failed to start.\n{CORE}IndexError: tuple index out of range"
    assert cause(f"{LOADING}\n{compiling}\n{failed}").failure == "compile-failed"
    assert cause(f"{LOADING}\n{failed}").failure == "unknown"


def test_an_orderly_stop_is_no_failure_but_a_crash_before_one_is() -> None:
    died = f"{SERVER}Engine core proc EngineCore_DP0 died unexpectedly, shutting down client."
    told = "(EngineCore pid=5) INFO 11-20 09:00:01 [core.py:1200] Shutdown initiated (timeout=0)"
    pressed = "^CTraceback (most recent call last):\nKeyboardInterrupt"
    for stop in (f"{died}\n{told}", f"{pressed}\n{died}", pressed):
        assert find_cause(f"{READY}\n{stop}".split("\n")) is None
        assert cause(f"{READY}\n{FATAL}\n{stop}").failure == "illegal-access"
    assert cause(f"{READY}\n{died}").failure == "engine-died"


def test_an_exception_ignored_is_no_failure() -> None:
    ignored = (
        "Exception ignored in: <function X.__del__ at 0x7f>\nTraceback (most recent call last):\n"
        "  File \"/v/a.py\", line 8, in __del__\nAttributeError: 'NoneType' object has no x"
    )
    assert find_cause(f"{READY}\n{ignored}".split("\n")) is None
    assert cause(f"{READY}\n{ignored}\nterminate called: CUDA error: {ILLEGAL}").line == 6


def test_of_an_engine_that_is_alive_only_the_cause_of_a_failed_process_counts() -> None:
    oom = f"{WORKER}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    failed = f"{WORKER}WorkerProc failed to start."
    assert find_cause([LOADING, oom], "load", alive=True) is None
    assert find_cause([LOADING, failed, f"{WORKER}KeyError: 'x'"], "load", alive=True) is None
    finding = find_cause([LOADING, failed, oom], "load", alive=True)
    assert finding is not None
    assert finding.failure == "device-oom-load"


UTILITY = f"""
{CORE}Invocation of add_lora method failed
{CORE}Traceback (most recent call last):
{CORE}  File "/opt/engine/vllm/v1/engine/core.py", line 9, in _invoke
{CORE}ValueError: no such adapter""".strip().split("\n")
STATISTICS = (
    "(APIServer pid=3) INFO 11-20 09:00:{second} [loggers.py:259] Engine 000: Avg prompt "
    "throughput: 1.0 tokens/s, Avg generation throughput: {rate} tokens/s, Running: 1 reqs, "
    "Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%"
)


def test_a_call_that_failed_while_serving_goes_on_is_no_death() -> None:
    assert find_cause([READY, *UTILITY]) is None
    later = f"{CORE.replace(':00 ', ':09 ')}EngineCore encountered a fatal error."
    finding = find_cause([READY, *UTILITY, later, ILLEGAL])
    assert finding is not None
    assert finding.failure == "illegal-access"


def test_a_call_that_workers_failed_does_not_hide_what_ends_the_engine_much_later() -> None:
    worker = WORKER.replace("TP0 pid=7", "TP{rank} pid=7{rank}")
    failed = [
        line.format(rank=rank)
        for rank in (0, 1)
        for line in (
            f"{worker}WorkerProc hit an exception.",
            f"{worker}Traceback (most recent call last):",
            f"{worker}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        )
    ]
    quiet = ['INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK'] * (2 * MANY)
    later = f"{CORE.replace(':00 ', ':09 ')}EngineCore encountered a fatal error."
    assert find_cause([READY, *failed, *UTILITY, *quiet]) is None
    finding = find_cause([READY, *failed, *UTILITY, *quiet, later, ILLEGAL])
    assert finding is not None
    assert finding.failure == "illegal-access"
    # Where nothing says that it was a call, what is known counts before what is not.
    unknown = [READY, f"{WORKER}WorkerProc hit an exception.", f"{WORKER}KeyError: 3", *quiet]
    finding = find_cause([*unknown, later, ILLEGAL])
    assert finding is not None
    assert finding.failure == "illegal-access"
    assert find_cause([READY, *failed, *quiet, later]) is not None


def test_an_engine_that_goes_on_generating_got_over_what_was_logged() -> None:
    oom = f"{WORKER}torch.OutOfMemoryError: CUDA out of memory."
    failed = [READY, f"{WORKER}WorkerProc hit an exception.", oom]
    live, still = (STATISTICS.format(second=10, rate=rate) for rate in ("9.0", "0.0"))
    assert find_cause([*failed, live, live]) is None
    busy = ['INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK'] * (MANY + 9)
    assert find_cause([*failed, *busy, live, *busy, live]) is None
    for after in ([], [live], [live, still], [live, still, live]):
        finding = find_cause([*failed, *after])
        assert finding is not None, after
        assert finding.failure == "device-oom-run"


@pytest.mark.parametrize(
    ("path", "error", "phase", "failure"),
    [
        ("models/qwen2.py", "KeyError: 'layers.0.mlp.up.weight'", LOADING, "model-missing"),
        (
            "layers/linear.py",
            "RuntimeError: The size of tensor a (8) must",
            LOADING,
            "model-missing",
        ),
        ("models/qwen2.py", "TypeError: 'int' object is not callable", LOADING, "unknown"),
        ("models/qwen2.py", "KeyError: 'x'", CAPTURING, "unknown"),
    ],
)
def test_weights_that_do_not_fit_the_configuration(
    path: str, error: str, phase: str, failure: str
) -> None:
    finding = raised(phase, f"/opt/engine/vllm/model_executor/{path}", "load_weights", error)
    assert finding.failure == failure


@pytest.mark.parametrize(
    ("path", "error", "failure"),
    [
        ("vllm/model_executor/layers/activation.py", "missing", "bad-arguments"),
        ("vllm/v1/spec_decode/eagle.py", "missing", "unknown"),
        ("caovan_vllm_sm75_turbo3/ops.py", "missing", "plugin-error"),
        ("vllm/config/model.py", "zero", "bad-arguments"),
        ("vllm/v1/spec_decode/eagle.py", "zero", "unknown"),
        ("caovan_vllm_sm75_turbo3/ops.py", "zero", "plugin-error"),
    ],
)
def test_what_only_the_operator_can_cure_is_not_what_a_rung_takes_away(
    path: str, error: str, failure: str
) -> None:
    said = {
        "missing": "ImportError: libcudart.so.12: cannot open shared object file: No such file",
        "zero": "ZeroDivisionError: integer modulo by zero",
    }[error]
    assert raised(LOADING, f"/opt/{path}", "f", said).failure == failure


def test_a_broken_file_of_the_model_is_named_better_by_what_follows() -> None:
    broken = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    refused = "huggingface_hub.errors.GatedRepoError: 403 Client Error."
    assert cause(broken, "resolve").failure == "model-missing"
    assert cause(f"{broken}\n{refused}", "resolve").failure == "access-denied"
    # An answer of a client's, that it sent as JSON, is none of the engine's files.
    body = "(APIServer pid=3) ERROR 11-20 09:00:00 [serving_chat.py:1145] " + broken
    assert find_cause(f"{READY}\n{body}".split("\n")) is None


def test_a_report_of_usage_that_failed_is_no_failure_of_the_engine() -> None:
    report = [
        "Exception in thread Thread-3 (_report_usage_worker):",
        "Traceback (most recent call last):",
        "requests.exceptions.ConnectionError: Max retries exceeded with url: /",
    ]
    assert find_cause([LOADING, *report]) is None


def test_a_name_that_is_not_resolved_is_named_better_by_what_follows() -> None:
    resolver = "socket.gaierror: [Errno -2] Name or service not known"
    hub = "httpx.ConnectError: [Errno -2] Name or service not known"
    assert cause(resolver, "resolve").failure == "bad-arguments"
    assert cause(f"{resolver}\n{hub}", "resolve").failure == "network"


def test_a_build_that_the_kernel_ended_for_memory_lacks_no_tools() -> None:
    failed = "RuntimeError: Ninja build failed. Ninja output:"
    killed = "c++: fatal error: Killed signal terminated program cc1plus"
    assert cause(failed, "warmup").failure == "jit-toolchain"
    assert (
        cause(f"{failed}\n{killed}\nninja: build stopped: subcommand failed.").failure == "host-oom"
    )


def test_a_compiler_that_refuses_a_kernel_is_named_better_by_its_reason() -> None:
    refused = "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error"
    reason = "ptxas error   : Entry function 'k' uses too much shared data (0x14000 bytes)"
    assert cause(refused, "capture").failure == "jit-toolchain"
    assert cause(f"{refused}\n{reason}", "capture").failure == "shared-memory-limit"


def test_an_empty_log_tells_nothing() -> None:
    assert find_cause([]) is None
    assert find_cause(["", "hello"]) is None


# -- the kernel log -------------------------------------------------------------------------

KILLED = "Out of memory: Killed process 7 (VLLM::Worker_TP) total-vm:1kB, anon-rss:1kB"
LOST = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus"
FAULT = "NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=VLLM::Worker, Ch 00000008, MMU Fault"


def test_the_kernel_log_tells_of_kills_in_our_tree_only() -> None:
    assert find_in_kernel([KILLED], pids={8}) is None
    finding = find_in_kernel([KILLED], pids={7})
    assert finding is not None
    assert (finding.failure, finding.captures["pid"]) == ("host-oom", "7")


def test_a_lost_card_outweighs_the_faults_before_it() -> None:
    finding = find_in_kernel([FAULT, LOST], pids=set())
    assert finding is not None
    assert (finding.failure, finding.line) == ("gpu-lost", 2)
    assert find_in_kernel([FAULT], pids={8}) is None, "another program's fault"
    finding = find_in_kernel([FAULT], pids={7})
    assert finding is not None
    assert finding.failure == "illegal-access"
    cleanup = FAULT.replace(" 31,", " 45,")
    assert find_in_kernel([cleanup], pids={7}) is None, "whatever ended it, even a kill"


def test_an_allocation_larger_than_the_card_is_told_from_one_that_a_share_would_hold() -> None:
    """As of a client's odd request on an H200: it asked for 32 TiB at once."""
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU 0 has a total"
    rest = " capacity of 139.80 GiB of which 2.41 GiB is free."
    for size, beyond in (("32768.00 GiB", True), ("139.81 GiB", True), ("139.80 GiB", False),
                         ("170.00 MiB", False), ("512 bytes", False)):  # fmt: skip
        found = cause(f"{LOADING}\n{READY}\n{text.format(size)}{rest}")
        assert (found.failure, found.beyond_card) == ("device-oom-run", beyond), size
    assert not cause(f"{LOADING}\n{READY}\n{text.format('9 GiB')}").beyond_card


def test_the_end_of_the_core_after_vllm_0_33_was_asked_to_stop_is_no_failure() -> None:
    at = "(APIServer pid=2047) {} 11-26 14:28:5{} [{}] {}"
    log = [
        at.format("INFO", 4, "launcher.py:256", "[shutdown] API server: shutdown triggered"),
        at.format("ERROR", 9, "async_llm.py:943", "AsyncLLM output_handler failed."),
        at.format("ERROR", 9, "async_llm.py:943", "Traceback (most recent call last):"),
        at.format(
            "ERROR", 9, "async_llm.py:943",
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack"
            " trace (above) for the root cause.",
        ),
    ]  # fmt: skip
    assert find_cause(log) is None
    assert find_cause(log[1:]) is not None


GENERIC = [
    ("profile", "NotImplementedError: FlashInfer sampling kernel is not there"),
    ("profile", "TypeError: forward() got an unexpected keyword argument 'sinks'"),
    ("profile", "RuntimeError: nvidia driver is not installed or please install it"),
    ("load", "AssertionError: free_memory=10 must be greater than requested_memory=12"),
]


@pytest.mark.parametrize(("phase", "error"), GENERIC)
def test_what_running_kernels_raise_is_left_to_the_ladder(phase: str, error: str) -> None:
    lines = [
        f"{CORE}EngineCore failed to start.",
        f"{CORE}Traceback (most recent call last):",
        f'{CORE}  File "/opt/engine/vllm/v1/attention/backends/flashinfer.py", line 9, in forward',
        f"{CORE}{error}",
    ]
    running = find_cause(lines, phase)
    lines[2] = f'{CORE}  File "/opt/engine/vllm/config/model.py", line 9, in __post_init__'
    reading = find_cause(lines, phase)
    assert running
    assert reading
    assert (running.failure, reading.failure) == ("unknown", "bad-arguments")
    assert "another kernel" in " ".join(advise(running, {}))
    assert "another kernel" not in " ".join(advise(reading, {}))


def test_a_method_that_is_not_implemented_is_known_by_its_code() -> None:
    path = "/opt/engine/vllm/v1/attention/backends/flashinfer.py"
    finding = raised(CAPTURING, path, "forward", "NotImplementedError: ")
    assert (finding.failure, finding.signature) == ("backend-unsupported", "raised.kernel")


@pytest.mark.parametrize(
    "text",
    [
        "TypeError: cannot pickle '_thread.lock' object",
        "ImportError: mistral_common version 1.5 does not match 1.8",
        "ValueError: Unrecognized configuration class <class 'X'> to build an AutoTokenizer.",
    ],
)
def test_what_ends_an_engine_that_served_is_no_fault_of_its_settings(text: str) -> None:
    finding = cause(f"""
{READY}
{CORE}EngineCore encountered a fatal error.
{CORE}Traceback (most recent call last):
{CORE}  File "/opt/engine/vllm/v1/engine/core.py", line 9, in run_busy_loop
{CORE}{text}
""")
    assert (finding.failure, finding.phase) == ("engine-died", "serving")
