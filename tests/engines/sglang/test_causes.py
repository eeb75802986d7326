"""Failures of SGLang are named by their first cause, from published lines and its sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.cli.explain import explain_log
from caovand.core.healing.failure import FAILURES
from caovand.core.healing.ladder import REACTIONS
from caovand.engines.sglang.engine import ENGINE
from caovand.engines.sglang.healing.advice import advise
from caovand.engines.sglang.log.cause import announces_failure, find_cause
from caovand.engines.sglang.log.explain import explain
from caovand.engines.sglang.log.phases import PHASES, read
from caovand.engines.sglang.log.signatures import BY_ID, HARMLESS, SIGNATURES

NAMES = tuple(phase.name for phase in PHASES)
SAMPLES = Path(__file__).parents[2] / "samples" / "sglang"
FAILED = [
    ("context-too-long", "bad-arguments", "sglang.context", "resolve"),
    ("decode-no-memory", "kv-cache-short", "sglang.pool", "serving"),
    ("graphs-no-memory", "device-oom-capture", "sglang.graphs.oom", "capture"),
    ("illegal-access", "illegal-access", "sglang.illegal", "serving"),
    ("no-kernel", "backend-unsupported", "sglang.arch", "load"),
    ("no-ram", "host-oom", "sglang.ram", "resolve"),
    ("no-room-for-cache", "kv-cache-none", "sglang.cache", "load"),
    ("no-room-for-states", "kv-cache-none", "sglang.cache", "load"),
    ("nvcc-headers", "jit-toolchain", "jit.header", "load"),
    ("port-taken", "port-busy", "sglang.port", "http"),
    ("request-slots", "kv-cache-short", "sglang.slots", "serving"),
    ("scheduler-killed", "engine-died", "sglang.killed", "serving"),
    ("share-too-high", "device-oom-capture", "sglang.oom", "capture"),
    ("share-too-low", "kv-cache-none", "sglang.cache", "load"),
    ("too-old-card", "backend-unsupported", "sglang.old", "resolve"),
    ("unknown-architecture", "bad-arguments", "sglang.model.architecture", "resolve"),
    ("unknown-option", "bad-arguments", "sglang.args.unknown", "resolve"),
    ("watchdog", "hang", "sglang.watchdog", "serving"),
    ("watchdog-0.5.23", "hang", "sglang.watchdog", "serving"),
    ("weights-no-memory", "device-oom-load", "sglang.oom", "load"),
    ("workspace", "backend-unsupported", "flashinfer.workspace", "serving"),
]
SERVED = ("serving", "serving-0.5.6", "serving-0.5.17")


def log(name: str) -> str:
    return (SAMPLES / f"{name}.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "failure", "signature", "phase"), FAILED)
def test_a_failure_is_named_by_its_cause(
    name: str, failure: str, signature: str, phase: str
) -> None:
    found = explain(log(name))
    assert found.finding is not None
    assert (found.finding.failure, found.finding.signature, found.finding.phase) == (
        failure, signature, phase,
    )  # fmt: skip
    assert found.advice
    assert found.finding.line > 0
    by_person = ENGINE.healing.precise.get(signature) == ()
    if REACTIONS[found.finding.failure].kind == "rung" and not by_person:
        assert ENGINE.healing.rungs_for(found.finding)


def test_every_sample_is_expected_and_has_a_source() -> None:
    names = {path.stem for path in SAMPLES.glob("*.log")}
    assert names == {*(name for name, *_ in FAILED), *SERVED}
    sources = (SAMPLES / "README.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}.log`" not in sources] == []


@pytest.mark.parametrize("name", SERVED)
def test_a_server_that_came_up_has_no_failure(name: str) -> None:
    found = explain(log(name))
    assert (found.finding, found.reached) == (None, "serving")


@pytest.mark.parametrize(
    "name", [*SERVED, "weights-no-memory", "graphs-no-memory", "watchdog", "context-too-long"]
)
def test_explain_finds_out_whose_log_it_is(name: str) -> None:
    assert explain_log(log(name))[0].name == "sglang"


def test_an_exception_without_words_is_shown_with_its_code_and_blames_nothing() -> None:
    found = explain(
        "[2026-05-01 10:00:12 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/opt/sglang/srt/models/qwen3.py", line 88, in __init__\n'
        "    assert self.total_num_heads % tp_size == 1\n"
        "AssertionError\n"
    )
    assert found.finding is not None
    assert found.finding.failure == "bad-arguments"
    assert found.finding.text == (
        "AssertionError at models/qwen3.py:88: assert self.total_num_heads % tp_size == 1"
    )
    assert "in this order" not in " ".join(found.advice)


def test_what_looks_like_a_failure_is_counted_as_harmless() -> None:
    assert explain(log("serving")).harmless == {
        "sglang.import": 1, "sglang.moe-config": 1, "sglang.retracted": 1,
    }  # fmt: skip


def test_captures_are_read() -> None:
    def captures(name: str) -> dict[str, str]:
        found = find_cause(log(name).splitlines(), "resolve")
        assert found is not None
        return dict(found.captures)

    assert captures("context-too-long") == {"wanted": "9999999", "limit": "32768"}
    assert captures("weights-no-memory") == {
        "wanted": "24.00 MiB", "gpu": "1", "total": "47.37 GiB",
    }  # fmt: skip
    assert captures("watchdog") == {"seconds": "300"}
    assert captures("port-taken") == {"host": "127.0.0.1", "port": "45893"}
    assert captures("unknown-architecture") == {"architecture": "'FooForCausalLM'"}


def test_a_share_that_leaves_no_room_for_graphs_is_lowered() -> None:
    """The cache was made, and the steps' buffers did not fit."""
    found = find_cause(log("share-too-high").splitlines(), "resolve")
    assert found is not None
    assert ENGINE.healing.rungs_for(found)[0].name == "share"


def test_the_figures_of_a_real_start_are_read() -> None:
    found = explain(log("serving-0.5.17"))
    assert {name: found.figures[name] for name in ("weights_gib", "kv_tokens", "kv_gib")} == {
        "weights_gib": 0.04, "kv_tokens": 17057183, "kv_gib": 65.06,
    }  # fmt: skip


def test_phases_and_figures_are_read() -> None:
    found = explain(log("serving"))
    assert [phase.phase for phase in found.phases] == list(NAMES)
    assert found.phases[2].seconds == 16
    assert found.figures == {
        "attention_backend": "flashinfer", "load_s": 16.2, "weights_gib": 15.06,
        "kv_tokens": 1106304, "kv_gib": 50.64, "capture_s": 12.1, "max_model_len": 131072,
    }  # fmt: skip
    older = explain(log("serving-0.5.6"))
    assert older.figures == {"kv_tokens": 2243474, "kv_gib": 119.82, "capture_s": 5.37}
    marks = [mark for mark, _ in map(read, log("serving").splitlines()) if mark is not None]
    assert [mark.detail for mark in marks if "%" in mark.detail] == [
        "reading the weights: 50 %", "reading the weights: 100 %", "capturing CUDA graphs: 0 %",
    ]  # fmt: skip
    assert [mark.phase for mark in marks if mark.progress == 1.0] == ["http"]


def test_what_a_client_or_a_prompt_says_is_no_failure() -> None:
    text = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    access = f'[2026-02-12 11:38:29] INFO:     127.0.0.1:338 - "GET /{text} HTTP/1.1" 404'
    request = f'[2026-02-12 11:38:29 TP0] Receive: obj=GenerateReqInput(text="{text}")'
    assert find_cause([access, request], "serving") is None
    assert find_cause([text], "serving") is not None


def test_an_engine_that_lives_has_failed_only_if_it_says_so() -> None:
    lines = log("no-room-for-cache").splitlines()
    assert [n for n, line in enumerate(lines) if announces_failure(line)] == [1, 6]
    assert find_cause(lines[4:5], "load", alive=True) is None
    assert find_cause(lines, "load", alive=True) is not None


def test_the_same_text_has_its_phases_meaning() -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    meant = {"load": "device-oom-load", "capture": "device-oom-capture"}
    for phase, failure in {**meant, "serving": "device-oom-run"}.items():
        found = find_cause([line], phase)
        assert found is not None
        assert found.failure == failure


def test_rows_have_unique_ids_and_known_failures() -> None:
    assert len({*BY_ID, *(row.id for row in HARMLESS)}) == len(SIGNATURES) + len(HARMLESS)
    assert {row.failure for row in SIGNATURES} <= set(FAILURES)


@given(st.lists(st.text(max_size=80), max_size=20), st.sampled_from(["", "load", "serving"]))
def test_any_lines_are_read(lines: list[str], phase: str) -> None:
    found = find_cause(lines, phase)
    if found is not None:
        advise(found)
    explain("\n".join(lines))


CONFIGURING = 'Traceback (most recent call last):\n  File "/opt/sglang/srt/{}", line 7, in {}\n{}\n'


@pytest.mark.parametrize(
    ("file", "function", "error", "failure", "phase"),
    [
        ("server_args.py", "check", "ValueError: a new refusal", "bad-arguments", "resolve"),
        ("configs/model_config.py", "f", "KeyError: 'rope_type'", "bad-arguments", "resolve"),
        ("server_args.py", "check", "OSError: [Errno 101] x", "unknown", "resolve"),
        ("layers/attention/a.py", "init_cuda_graphs",
         "TypeError: forward() got an unexpected keyword argument 'sinks'", "unknown", "capture"),
        ("managers/tp.py", "f", "ValueError: a new refusal", "unknown", "resolve"),
        ("managers/scheduler.py", "event_loop_overlap", "ValueError: x", "engine-died", "serving"),
        ("model_executor/cuda_graph_runner.py", "capture",
         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB",
         "device-oom-capture", "capture"),
        ("models/x.py", "load_weights", "KeyError: 'new_name'", "model-missing", "resolve"),
        ("models/x.py", "load_weights", "OSError: [Errno 101] x", "unknown", "resolve"),
        ("x.py", "f", "RuntimeError: CUDA error: invalid argument", "launch-failure", "resolve"),
        ("x.py", "f", "RuntimeError: CUDA error: operation not permitted when stream is capturing",
         "launch-failure", "resolve"),
        ("x.py", "f", "subprocess.CalledProcessError: Command '/x/ptxas -v /tmp/a' returned "
         "non-zero exit status 255.", "jit-toolchain", "resolve"),
    ],
)  # fmt: skip
def test_an_exception_without_a_row_is_known_by_the_code_that_raised_it(
    file: str, function: str, error: str, failure: str, phase: str
) -> None:
    lines = CONFIGURING.format(file, function, error).split("\n")
    finding = find_cause(lines, "resolve")
    assert finding is not None
    assert (finding.failure, finding.phase) == (failure, phase)


REQUEST = """\
[2025-06-01 10:01:00] ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "/opt/sglang/srt/entrypoints/openai/serving_chat.py", line 7, in handle
ValueError: max_tokens must be at least 1
"""
CRASHED = """\
[2025-06-01 10:02:00] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/sglang/srt/managers/scheduler.py", line 7, in event_loop_overlap
ValueError: x
"""


def test_what_ended_a_serving_engine_is_not_a_request_s_exception() -> None:
    assert find_cause(REQUEST.split("\n"), "serving") is None
    finding = find_cause((REQUEST + CRASHED).split("\n"), "serving")
    assert finding is not None
    assert (finding.text, finding.line) == ("ValueError: x", 7)
    handler = CRASHED.replace("Scheduler hit", "TokenizerManager hit")
    handler = handler.replace("scheduler.py", "tokenizer_manager.py")
    finding = find_cause((REQUEST + handler).split("\n"), "serving")
    assert finding is not None
    assert finding.text == "ValueError: x"


@pytest.mark.parametrize(
    "survived",
    [
        "OSError: [Errno 37] No locks available",
        "OSError: [Errno 122] Disk quota exceeded: '/home/user/.cache/x'",
        "NotADirectoryError: [Errno 20] Not a directory: '/proc/1/cgroup/memory'",
        "KeyError: '<unk>'",
    ],
)
@pytest.mark.parametrize("phase", ["load", "serving"])
def test_an_exception_that_ended_nothing_gives_way_to_the_one_that_did(
    survived: str, phase: str
) -> None:
    began = "[2026-11-27 08:00:00] The server is fired up and ready to roll!"
    lines = [
        "Exception ignored in: <function Cache.__del__ at 0x7f>",
        "Traceback (most recent call last):",
        '  File "/opt/env/lib/python3.12/site-packages/filelock/_unix.py", line 5, in _acquire',
        survived,
        "[2026-11-27 09:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ]
    found = find_cause([began, *lines] if phase == "serving" else lines, phase)
    assert found is not None
    assert found.failure.startswith("device-oom")
