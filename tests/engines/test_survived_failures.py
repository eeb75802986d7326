"""What ends no server: `explain` tells it, and the daemon never takes it for why one ended."""

from __future__ import annotations

import pytest

from caovand.cli.explain import page
from caovand.core.healing.answer import FailureAnswer
from caovand.core.healing.failure import Finding
from caovand.engines import registry
from caovand.engines.explaining.answer import answer_of
from caovand.engines.writer import explain_log

SERVES_ON = "the server serves on; only this request, or what it asks of the server, must change"
NO_CUDA = [
    "ggml_cuda_init: failed to initialize CUDA: system has unsupported display driver / cuda driver"
    " combination",
    "main: model loaded",
    "main: server is listening on http://0.0.0.0:8080",
    "main: starting the main loop...",
]
UNANSWERED = [
    "[2025-09-24 05:40:11] The server is fired up and ready to roll!",
    "[2025-09-24 05:49:34] Health check failed. Server couldn't get a response from detokenizer "
    "for last 20 seconds. tic start time: 05:49:14. last_heartbeat time: 05:42:53",
]
LONG_PROMPT = [
    "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)",
    "WARNING 02-16 15:37:32 scheduler.py:947] Input prompt (2501 tokens) is too long and exceeds "
    "limit of 2048",
]
CAUGHT = [
    'INFO:     10.0.3.7:51324 - "POST /v1/embeddings HTTP/1.1" 500 Internal Server Error',
    "ERROR:    Exception in ASGI application",
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3/dist-packages/vllm/entrypoints/openai/serving.py", line 9, in f',
    "AttributeError: 'EmbeddingChatRequest' object has no attribute 'mm_processor_kwargs'",
]
TOO_LONG = [
    'time=2026-01-02T03:04:05Z level=ERROR source=routes.go:1 msg="input length exceeds maximum '
    'context length"'
]


def explained(lines: list[str]) -> tuple[Finding, tuple[str, ...], FailureAnswer]:
    found = explain_log("\n".join(lines))
    assert found is not None
    writer, explanation = found
    assert explanation.finding is not None
    finding = explanation.finding
    return finding, explanation.advice, answer_of(writer.engine, finding)


@pytest.mark.parametrize(
    ("engine", "lines", "failure", "signature"),
    [
        ("llamacpp", NO_CUDA, "gpu-absent", "driver.compat"),
        ("sglang", UNANSWERED, "hang", "sglang.health"),
        ("vllm", LONG_PROMPT, "bad-arguments", "args.prompt"),
        ("vllm", CAUGHT, "bad-arguments", "request.failed"),
        ("ollama", TOO_LONG, "bad-arguments", "ollama.request.context"),
    ],
)
def test_a_server_that_goes_on_is_explained_and_not_what_ended_it(
    engine: str, lines: list[str], failure: str, signature: str
) -> None:
    finding, _, _ = explained(lines)
    assert (finding.failure, finding.signature) == (failure, signature)
    assert finding.line == next(n for n, line in enumerate(lines, 1) if finding.text in line)
    log = registry.engine_of(engine).log
    assert log.find_cause(lines, "serving", alive=True) is None
    ended = log.find_cause(lines, "serving")
    assert ended is None or ended.signature != signature


@pytest.mark.parametrize("lines", [CAUGHT, TOO_LONG, LONG_PROMPT])
def test_a_refused_or_failed_request_leaves_the_server_serving(lines: list[str]) -> None:
    finding, _, answer = explained(lines)
    if finding.phase == "serving":
        assert answer.how == SERVES_ON


def test_a_failed_request_says_what_its_exception_means() -> None:
    _, advice, answer = explained(CAUGHT)
    assert advice[0].startswith("The exception ended one request")
    assert "EmbeddingChatRequest has no mm_processor_kwargs" in advice[1]
    assert (answer.heals, answer.how) == ("no", SERVES_ON)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ("/backends/vllm/backend.py", "Here backend.py imports it."),
        ("/usr/lib/python3/site-packages/vllm_ascend/ops.py", "Here vllm_ascend imports it."),
        ("app.py", "Here app.py imports it."),
        ("/workspace/vllm/vllm/v1/utils.py", "files of two of its releases are mixed"),
        ("/usr/lib/python3/site-packages/vllm/utils.py", "files of two of its releases are mixed"),
    ],
)
def test_who_imports_what_a_package_lacks_is_said(frame: str, said: str) -> None:
    lines = [
        "Traceback (most recent call last):",
        f'  File "{frame}", line 24, in <module>',
        "    from vllm.transformers_utils.tokenizer import get_tokenizer",
        "ModuleNotFoundError: No module named 'vllm.transformers_utils.tokenizer'",
    ]
    _, advice, _ = explained(lines)
    assert said in " ".join(advice)
    assert "again, in its own environment" not in " ".join(advice)


@pytest.mark.parametrize(
    "raised",
    [
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x89 in position 0",
        "botocore.exceptions.ClientError: An error occurred (404) when calling HeadObject",
    ],
)
def test_a_raw_traceback_of_the_code_that_answers_ends_no_engine(raised: str) -> None:
    started = "INFO 02-16 15:30:00 [api_server.py:1] Application startup complete."
    handler = '  File "/usr/lib/python3/dist-packages/vllm/entrypoints/chat_utils.py", line 9, in f'
    loop = '  File "/usr/lib/python3/dist-packages/vllm/v1/engine/core.py", line 9, in f'
    first = "Traceback (most recent call last):"
    find_cause = registry.engine_of("vllm").log.find_cause
    assert find_cause([started, first, handler, raised], "serving") is None
    found = find_cause([started, first, loop, raised], "serving")
    assert found is not None
    assert found.text == raised


def test_a_value_that_a_gguf_file_lacks_is_told_from_a_crash_of_the_server() -> None:
    finding, advice, _ = explained([
        "2026/01/02 03:04:05 routes.go:1: INFO server config",
        "panic: interface conversion: interface {} is nil, not *ggml.array[string]",
        "goroutine 31 [running]:",
    ])  # fmt: skip
    assert (finding.failure, finding.signature) == ("model-missing", "ollama.model.metadata")
    assert "lacks a value (array)" in advice[0]


VLLM = (
    "INFO 05-28 15:37:03 metrics.py:334] Avg prompt throughput: 0.0 tokens/s, Avg generation "
    "throughput: 0.0 tokens/s, Running: 0 reqs, Swapped: 0 reqs, Pending: 0 reqs"
)
_ANSWERED_BY_OLLAMA = (
    '[GIN] 2025/03/17 - 07:09:31 | 200 |         1m10s |   192.168.1.3 | POST     "/api/chat"'
)
_FAILED_AFTER = _ANSWERED_BY_OLLAMA.replace("200", "500").replace("  1m10s", "{}")
_GAVE_UP = (
    "time=2025-03-17T07:09:31.565Z level=INFO source=runner.go:654 "
    'msg="aborting completion request due to client closing the connection"'
)


@pytest.mark.parametrize(
    ("text", "reached", "signature"),
    [
        ('INFO:     10.0.0.2:5 - "POST /v1/completions HTTP/1.1" 200 OK', "serving", ""),
        (
            'INFO:     10.0.0.2:5 - "POST /v1/completions HTTP/1.1" 404 Not Found',
            "serving",
            "request.answered",
        ),
        ('INFO:     10.0.0.2:5 - "POST /generate HTTP/1.1" 404 Not Found', "serving", "args.path"),
        (_ANSWERED_BY_OLLAMA, "serving", ""),
        ("\n".join([_ANSWERED_BY_OLLAMA, _GAVE_UP, _GAVE_UP]), "serving", ""),
        ("\n".join([_ANSWERED_BY_OLLAMA, *[_GAVE_UP] * 3]), "serving", "ollama.gave-up"),
        (
            f"{_ANSWERED_BY_OLLAMA}\n{_FAILED_AFTER.format('1h10m0s')}",
            "serving",
            "ollama.timed-out",
        ),
        (f"{_ANSWERED_BY_OLLAMA}\n{_FAILED_AFTER.format('9m58s')}", "serving", ""),
    ],
)
def test_an_excerpt_of_answered_requests_is_of_a_server_that_serves(
    text: str, reached: str, signature: str
) -> None:
    engine = VLLM + "\n" if text.startswith("INFO") else ""
    found = explain_log(engine + text)
    assert found is not None
    finding = found[1].finding
    assert (found[1].reached, finding.signature if finding else "") == (reached, signature)


ACCESS = 'INFO:     10.0.3.7:51324 - "POST {} HTTP/1.1" {}'
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("route", "status", "failure", "words"),
    [
        (CHAT, "401 Unauthorized", "access-denied", "wants a key"),
        (CHAT, "403 Forbidden", "bad-arguments", "may not use it"),
        (CHAT, "404 Not Found", "bad-arguments", "served-model-name"),
        (CHAT, "422 Unprocessable Entity", "bad-arguments", "does not accept"),
        (CHAT, "500 Internal Server Error", "unknown", "answered its last requests with 500"),
    ],
)
def test_a_server_whose_last_answers_are_errors_has_not_served(
    route: str, status: str, failure: str, words: str
) -> None:
    begin = "(APIServer pid=7) INFO 11-20 09:00:00 [api_server.py:1] vLLM API server"
    lines = [begin, *[ACCESS.format(route, status)] * 3]
    explained = explain_log("\n".join(lines))
    assert explained is not None
    assert explained[1].finding is not None
    assert explained[1].finding.failure == failure
    assert words in explained[1].advice[0]
    lines[2] = ACCESS.format(CHAT, "200 OK")
    if not status.startswith("401"):
        corrected = explain_log("\n".join(lines))
        assert corrected is not None
        assert corrected[1].finding is None


def test_the_first_phase_is_not_named_to_a_reader() -> None:
    begin = "(APIServer pid=7) INFO 11-20 09:00:00 [api_server.py:1] vLLM API server"
    explained = explain_log(begin)
    assert explained is not None
    assert "no known failure" in list(page(explained[1], "vLLM"))
