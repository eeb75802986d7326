"""Texts of engines are found behind any prefix, in bodies, titles and quotes."""

from __future__ import annotations

import json

import pytest

from caovand.engines import registry
from caovand.engines.common.logs.wrapping import join_wrapped
from caovand.engines.explaining import excerpts
from caovand.engines.explaining.excerpts import is_alarming, pieces
from caovand.engines.writer import explain_log

MEMORY = "ggml_vulkan: Device memory allocation of size 1059303232 failed."
TERMINATED = (
    "llama runner process has terminated: error loading model: unable to allocate CUDA0 buffer"
)


def named(text: str) -> tuple[str, str, int] | None:
    """The writer, the failure and its line; None where nothing is named."""
    found = explain_log(text)
    if found is None or found[1].finding is None:
        return None
    return found[0].name, found[1].finding.failure, found[1].finding.line


@pytest.mark.parametrize(
    "prefix",
    ["10:25PM DBG GRPC(x-127.0.0.1:42747): stderr ", "* `", "app[web.1] said >", "kobold> x="],
)
def test_a_known_text_counts_behind_a_prefix_that_nobody_knows(prefix: str) -> None:
    assert named(f"nothing here\n{prefix}{MEMORY}\n") == ("llamacpp", "device-oom-load", 2)


@pytest.mark.parametrize(
    "text",
    [
        f"Error: 500 Internal Server Error: {TERMINATED}",
        json.dumps({"error": TERMINATED}),
        "HTTP 500 " + json.dumps({"error": json.dumps({"error": {"message": TERMINATED}})}),
        "Error: 500 Internal Server Error: llama runner process has terminated:\n"
        "error loading model: unable to allocate CUDA0 buffer",
    ],
)
def test_what_a_client_shows_of_an_answer_is_read(text: str) -> None:
    found = named(text)
    assert found is not None
    assert found[:2] == ("ollama", "device-oom-load")


def test_a_title_alone_names_the_program_whose_words_it_has() -> None:
    text = "Failed to load model error loading model: unable to allocate Vulkan0 buffer"
    assert named(text) == ("llamacpp", "device-oom-load", 1)
    assert named("The weather is fine, and nothing failed.") is None


def test_a_line_that_a_server_printed_itself_stays_whole() -> None:
    line = '1.06.520.077 E graph_reserve: failed to allocate "CUDA error: x"'
    assert pieces(f"{line}\n{MEMORY}") == (f"{line}\n{MEMORY}", [1, 2])


def test_records_that_a_terminal_copied_as_one_line_are_two() -> None:
    other = "(VllmWorkerProcess pid=70) INFO 01-20 01:25:05 selector.py:129] Using XFormers."
    error = "ERROR 01-20 01:25:05 engine.py:366] Bfloat16 is only supported on GPUs with compute "
    text = f"{other}{' ' * 20}{error}capability of at least 8.0."
    assert named(text) == ("vllm", "backend-unsupported", 1)


def test_words_of_vllm_count_in_another_program_s_record() -> None:
    text = "worker 3: Failed to generate Cutlass kernels: [Errno 13] Permission denied"
    found = named(text)
    assert found is not None
    assert found[1] == "access-denied"


def test_a_log_that_ends_within_a_traceback_is_not_known_and_says_why() -> None:
    prefix = "(EngineCore pid=7) ERROR 05-06 07:10:30 [core.py:343] "
    frame = '  File "/opt/vllm/model_executor/models/phi.py", line 213, in __init__'
    cut = f"{prefix}Traceback (most recent call last):\n{prefix}{frame}\n{prefix}    a = b(\n"
    assert named(cut) == ("vllm", "unknown", 2)
    found = explain_log(cut)
    assert found is not None
    assert any("ends within a traceback" in text for text in found[1].advice)
    went_on = "INFO 05-06 07:10:31 [api.py:1] x\n" * 5
    assert named(cut + went_on) is None, "it was handled"


def test_an_environment_that_is_called_vllm_is_not_vllm() -> None:
    frame = '  File "/opt/envs/vllm/lib/python3.12/site-packages/pip/build.py", line 389, in main'
    text = f"CMake Generate step failed.\nTraceback (most recent call last):\n{frame}\n"
    assert named(text) == ("", "jit-toolchain", 1)


def test_what_a_program_lives_with_is_no_failure() -> None:
    assert not is_alarming("CUDA error: operation not permitted, using fallback")
    assert named("x: CUDA error: out of memory, falling back to the processor") is None


def test_a_long_log_is_read_as_printed_only() -> None:
    assert pieces("x\n" * (excerpts.MAX_LINES + 1)) == ("", ())


def test_a_log_that_served_is_not_searched_for_another_failure() -> None:
    text = (
        "1.06.520.084 E ggml_gallocr_reserve_n_impl: failed to allocate CUDA1 buffer of size 7\n"
        "1.06.520.107 W sched_reserve: compute buffer allocation failed, retrying without it\n"
        "1.07.304.130 I srv    llama_server: listening on http://127.0.0.1:8080\n"
    )
    assert named(text) is None


def test_a_build_shows_what_is_built_by_its_paths() -> None:
    failed = "nvcc fatal   : Unsupported gpu architecture 'compute_120'\n"
    assert named(f"-- Including CPU backend\n{failed}") == ("llamacpp", "jit-toolchain", 2)


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("ValueError: There is no module or parameter named\n'layers.0.mlp.down_proj.weight' in A",
         "model.tensor"),
        ("torch.distributed.DistNetworkError:\nThe server socket has failed to listen on any local "
         "network address.\ncode: -98,\nname: EADDRINUSE,", "port.busy"),
    ],
)  # fmt: skip
def test_the_text_of_an_exception_may_go_on_in_the_next_line(text: str, row: str) -> None:
    found = explain_log(text)
    assert found is not None
    assert found[1].finding is not None
    assert (found[1].finding.signature, found[1].finding.line) == (row, 1)


def test_the_line_after_an_exception_that_ends_is_not_its_text() -> None:
    text = "RuntimeError: it failed.\nlike this\nValueError: Unknown value\nDone with it"
    assert join_wrapped(text) == text


def test_a_log_that_ends_with_the_source_that_raises_is_read_as_if_it_were_raised() -> None:
    raised = 'File "vllm/v1/worker/gpu/buffer_utils.py", line 47, in __init__\n    raise {}\n'
    assert named(raised.format('RuntimeError("UVA is not available")')) == (
        "vllm", "backend-unsupported", 3,
    )  # fmt: skip
    assert named(raised.format("RuntimeError(text)")) is None


def test_a_frame_as_wide_as_the_text_is_not_broken() -> None:
    frame = '  File "/opt/vllm/v1/worker/gpu/buffer_utils.py", line 47, in __init__'
    text = "\n".join([frame, "    self.buffer = x"] * 4)
    assert join_wrapped(text) == text


def test_a_request_that_is_refused_is_named_where_nothing_else_is_found() -> None:
    text = (
        "ERROR 07-03 03:19:15 [serving_chat.py:200] Error in preprocessing prompt inputs\n"
        "ERROR 07-03 03:19:15 [serving_chat.py:200] Traceback (most recent call last):\n"
        'ERROR 07-03 03:19:15 [serving_chat.py:200]   File "/opt/vllm/entrypoints/a.py", line 1, '
        "in create\nERROR 07-03 03:19:15 [serving_chat.py:200] ValueError: This model's maximum "
        "context length is 16384 tokens. However, you requested 122946 tokens\n"
    )
    assert named(text) == ("vllm", "bad-arguments", 4)
    text += "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    assert named(text) == ("vllm", "device-oom-load", 5)


def test_a_refused_request_is_told_to_a_reader_and_is_never_why_a_server_ended() -> None:
    refused = "ERROR 11-20 09:13:16 [serving.py:1] ValueError: At most 1 image(s) may be provided"
    text = f"vLLM API server version 0.11.0\nINFO:     Application startup complete.\n{refused}\n"
    assert named(text) == ("vllm", "bad-arguments", 3)
    assert registry.engine_of("vllm").log.find_cause(text.split("\n"), "serving") is None


def test_a_model_is_named_with_its_tag() -> None:
    found = explain_log(
        "Error [ResponseError]: registry.ollama.ai/library/llama2:13b does not support tools\n"
    )
    assert found is not None
    assert found[1].finding is not None
    assert "llama2:13b" in found[1].finding.text
