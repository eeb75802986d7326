"""A request that a server refused is never why it ended: the daemon's readers of all engines."""

from __future__ import annotations

import pytest

from caovand.engines.llamacpp.log.reader import LOG as LLAMACPP
from caovand.engines.ollama.log.reader import LOG as OLLAMA
from caovand.engines.sglang.log.reader import LOG as SGLANG
from caovand.engines.vllm.log.reader import LOG as VLLM
from caovand.engines.writer import answer_for, explain_log

LOADED = (
    'time=2026-11-20T09:00:00Z level=INFO source=server.go:1289 msg="llama runner started in 2 s"'
)
TOOL_CALL = (
    "time=2026-11-20T09:00:01Z level=WARN source=qwen3coder.go:71 "
    'msg="qwen tool call parsing failed" error="XML syntax error on line 3: unexpected EOF"'
)
OOM = "CUDA error: out of memory"
RUNNER = (
    "time=2026-11-20T09:00:05Z level=ERROR source=server.go:1500 "
    'msg="llama runner terminated" error="exit status 2"'
)


def test_a_tool_call_that_ollama_cannot_parse_hides_no_cause() -> None:
    found = OLLAMA.find_cause([LOADED, TOOL_CALL, OOM, RUNNER], "serving")
    assert found is not None
    assert found.failure == "device-oom-run"
    after = OLLAMA.find_cause([LOADED, TOOL_CALL, RUNNER], "serving")
    assert after is None or after.failure == "engine-died"


def test_a_prompt_that_vllm_refused_leaves_its_death_without_a_cause() -> None:
    refused = (
        "(APIServer pid=10) ERROR 11-20 09:00:01 [serving_engine.py:900] ValueError: This model's "
        "maximum context length is 4096 tokens"
    )
    died = (
        "(APIServer pid=10) ERROR 11-20 09:00:05 [core_client.py:600] Engine core proc "
        "EngineCore_DP0 died unexpectedly, shutting down client."
    )
    alone = VLLM.find_cause([died], "serving")
    found = VLLM.find_cause([refused, died], "serving")
    assert alone is not None
    assert found is not None
    assert (found.failure, found.signature) == (alone.failure, alone.signature)


def test_a_prompt_that_sglang_refused_leaves_its_death_without_a_cause() -> None:
    refused = [
        "[2026-11-20 09:00:01] Error in request: 'x'",
        "Traceback (most recent call last):",
        '  File "/opt/sglang/srt/managers/tokenizer_manager.py", line 5, in _tokenize',
        "UnicodeDecodeError: 'ascii' codec can't decode byte 0xe4 in position 0",
    ]
    died = ["[2026-11-20 09:00:05] Rank 0 scheduler is dead."]
    found, alone = (SGLANG.find_cause(lines, "serving") for lines in (refused + died, died))
    assert (found and found.failure) == (alone and alone.failure)


def test_a_prompt_too_long_for_llama_cpp_is_no_reason_to_end() -> None:
    line = "0.10.000.000 E srv send_error: task id = 1, error: input is too large to process"
    assert LLAMACPP.find_cause([line], "serving") is None


def test_before_it_serves_what_an_engine_refuses_is_its_own_failure() -> None:
    line = "0.01.000.000 E Failed to initialize samplers"
    found = LLAMACPP.find_cause([line], "load")
    assert found is not None
    assert found.signature == "llama.request.grammar"


@pytest.mark.parametrize("begins", ["", "INFO:     Application startup complete."])
@pytest.mark.parametrize(
    ("error", "signature"),
    [
        ("ValueError: As of transformers v4.44, default chat template is no longer allowed",
         "args.template"),
        ("ValueError: The widget is not one that I know", "request.refused"),
    ],
)  # fmt: skip
def test_explain_names_why_vllm_refused_a_request_and_promises_no_rung(
    begins: str, error: str, signature: str
) -> None:
    logged = "(APIServer pid=1) ERROR 03-05 16:30:27 [serving.py:323] "
    lines = [
        begins,
        f"{logged}Error in applying chat template from request",
        f"{logged}Traceback (most recent call last):",
        f"{logged}{error}",
        '(APIServer pid=1) INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 400 Bad R',
    ]
    if signature == "request.refused":
        del lines[1]
    found = explain_log("\n".join(lines))
    assert found is not None
    writer, explanation = found
    assert explanation.finding is not None
    assert explanation.finding.signature == signature
    assert explanation.finding.text == error
    told = answer_for(writer, explanation.finding, None)
    assert told.heals == "no"
    assert "serves on" in told.how
    assert not told.changes
    assert VLLM.find_cause(lines, "serving", alive=True) is None
    died = (
        "(APIServer pid=1) ERROR 03-05 16:31:05 [core_client.py:600] Engine core proc "
        "EngineCore_DP0 died unexpectedly, shutting down client."
    )
    found = explain_log("\n".join([*lines, died]))
    assert found is not None
    assert found[1].finding is not None
    assert found[1].finding.signature != signature


@pytest.mark.parametrize(
    "text",
    [
        "Error response from daemon: unknown or invalid runtime name: nvidia",
        'could not select device driver "" with capabilities: [[gpu]]',
    ],
)
def test_a_container_that_its_runtime_refuses_waits_for_no_card(text: str) -> None:
    found = explain_log(f"{text}\n")
    assert found is not None
    writer, explanation = found
    assert explanation.finding is not None
    told = answer_for(writer, explanation.finding, None)
    assert told.heals == "no"
    assert "waiting cannot help" in told.how
