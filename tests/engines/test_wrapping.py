"""Lines of an engine are known as people paste them, by `explain`, the daemon and every engine."""

from __future__ import annotations

import json

import pytest

from caovand.engines import registry
from caovand.engines.common.logs.whole_log import lines_of
from caovand.engines.common.logs.wrapping import join_wrapped, unwrap, without_label, without_markup
from caovand.engines.writer import explain_log
from tests.daemon_process import ROOT

LINE = "ERROR 11-20 09:13:16 [core.py:1140] ValueError: x"
AS_PASTED = (
    "vllm-1  | ", "vllm_api.1.abc123@node1    | ", "[pod/vllm-0/vllm] ",
    "Nov 20 09:00:00 host bash[812]: ", "3月 25 09:28:05 host ollama[2816880]: ",
    "2026-03-25T19:17:07+02:00 gemma3.server[16376]: ", "[12345.678901] host vllm[812]: ",
    "2026-11-20T09:00:00.1+00:00 stdout F ", "[2026-02-24T20:21:58Z] ", "2024-02-20 21:46:23 | ",
    "2025-03-07 23:50:27,531 - __main__ - INFO - ",
    "[46009] ", "0: ", "12: ", "0|vllm-app  | ",
    "[rank0]: ", "[Sun Mar 24 23:54:53 2024] ", "> ", "│ ",
    "[multiproc_executor.py:492] ",
    "[2024-12-11 21:39:23.552] [error] [WASI-NN] llama.cpp: ",
    "Dec  5 10:29:11 localhost ollama: ", "[llamacpp-router stdout] [52717] ",
    "2025-10-24T17:12:08.363544040 +08:00 CST ", "2025-10-24 17:12:08.36 +0800 CST ",
    "2026-10-26T04:20:50.961 app[48ed663be33558] ord [info] ",
    "vllm-1  | 2026-11-20T09:00:00.123456Z ", "[1;36m",
    "(ServeReplica:llm:Deployment pid=7, ip=10.0.0.2) ", "(SGLangWorker pid=38138) ",
)  # fmt: skip
OWN = (
    "[2025-03-12 10:12:44 TP0] Load weight end.", "[2025-03-12 10:12:44] server_args=ServerArgs()",
    "0.41.568.358 E CUDA error: x", "(Worker_TP0 pid=7) x", "time=2025-01-28T17:02:55 level=INFO",
    "[2025-10-29 11:26:03] SIGQUIT received. x",
    "[rank0]:[E1120 ProcessGroupNCCL.cpp:1] x", "[ 1843.308145] NVRM: x", "INFO:     x", "",
)  # fmt: skip


@pytest.mark.parametrize("prefix", AS_PASTED)
def test_what_other_tools_put_before_a_line_is_taken_off(prefix: str) -> None:
    assert lines_of(prefix + LINE) == [LINE]


@pytest.mark.parametrize(
    "prefix",
    [
        "2025-11-02 13:17:04,315 - vllm.v1.engine.core_client - ERROR - ",
        "2025-11-02 13:17:04.315 | ERROR    | vllm.v1.engine.core_client:run:12 - ",
        "[2025-11-02 13:17:04,315][vllm.v1.engine.core_client][ERROR] - ",
        "2025-11-02T13:17:04Z ERROR vllm.v1.engine.core_client: ",
        "vllm-1  | 2025-11-02 13:17:04,315 - vllm.v1.engine.core_client - ERROR - ",
    ],
)
def test_the_loggers_of_vllm_are_known_in_formats_of_other_programs(prefix: str) -> None:
    assert unwrap(f"{prefix}x: y") == "ERROR 11-02 13:17:04 [core_client.py:0] x: y"


def test_the_default_format_of_logging_has_no_time() -> None:
    found = unwrap("ERROR:vllm.engine.llm_engine:x")
    assert found == "ERROR 00-00 00:00:00 [llm_engine.py:0] x"
    assert unwrap("2025-11-02 13:17:04 - vllm.note") == "- vllm.note"


@pytest.mark.parametrize("line", OWN)
def test_what_an_engine_begins_its_lines_with_stays(line: str) -> None:
    assert unwrap(line) == line


@pytest.mark.parametrize("label", ["[VLLM LOG] ", "vLLM STDOUT: ", "worker 3 | "])
def test_a_label_that_every_line_has_is_taken_off(label: str) -> None:
    lines = (LINE, "Traceback (most recent call last):", "ValueError: x")
    assert without_label("\n".join(label + line for line in lines)) == "\n".join(lines)


@pytest.mark.parametrize(
    "lines",
    [
        ("llama_model_loader: a", "llama_model_loader: b", "llama_model_loader: c"),
        ("CUDA error: a", "CUDA error: b", "CUDA error: c"),
        ("[VLLM LOG] a", "[VLLM LOG] b"),
        ("[VLLM LOG] a", "[VLLM LOG] b", "c"),
    ],
)
def test_what_may_be_the_engine_s_own_is_no_label(lines: tuple[str, ...]) -> None:
    assert without_label("\n".join(lines)) == "\n".join(lines)


def test_what_ray_adds_to_repeated_lines_is_taken_off() -> None:
    assert unwrap(f"{LINE} [repeated 6x across cluster]") == LINE
    assert unwrap(f"{LINE} [repeated 6x across cluster] (Ray deduplicates logs)") == LINE


def test_borders_colours_and_records_of_docker_are_taken_off() -> None:
    assert lines_of(f"│ {LINE}      │\r\n") == [LINE, ""]
    assert lines_of(f"\x1b[1;36m{LINE}\x1b[0m [0;0m") == [LINE + " "]
    assert lines_of(json.dumps({"log": f"\x1b[31m{LINE}\n"})) == [LINE]
    assert lines_of('{"log": 1}') == ["1"]
    assert lines_of(json.dumps({"level": 50, "pid": 7, "msg": f"{LINE}\n"})) == [LINE]
    other = json.dumps({"level": "ERROR", "message": LINE})
    assert lines_of(other) == [other]
    assert lines_of('{"log": ') == ['{"log": ']


@pytest.mark.parametrize("name", registry.MODULES)
def test_the_daemon_takes_the_same_off_for_every_engine(name: str) -> None:
    assert list(registry.engine_of(name).log.plain(f"[46009] {LINE}")) == [LINE]


def folded(text: str, width: int) -> str:
    """As a terminal of this width shows it; tmux copies no blank at the edge."""
    return "\n".join(
        piece.rstrip(" ")
        for line in text.split("\n")
        for piece in ([line[n : n + width] for n in range(0, len(line), width)] or [""])
    )


@pytest.mark.parametrize("width", [80, 120, 200])
def test_lines_that_a_terminal_broke_are_whole_again(width: int) -> None:
    path = ROOT / "tests/samples/logs/vllm-0.21.0-h200-kv_short.log"
    text = path.read_text(encoding="utf-8")
    found = explain_log(folded(text, width))
    assert found is not None
    writer, explanation = found
    assert writer.name == "vllm"
    assert explanation.finding is not None
    assert explanation.finding.failure == "kv-cache-short"
    assert explanation.finding.captures["fits"] == "175552"
    number = explanation.finding.line
    assert "ValueError: To serve" in folded(text, width).split("\n")[number - 1]


def test_other_lines_of_one_length_stay_as_they_are() -> None:
    line = "INFO 11-20 09:00:00 [x.py:1] " + "x" * 60
    table = "+----+" * 15
    assert join_wrapped("\n".join([line] * 9)) == "\n".join([line] * 9)
    assert join_wrapped("\n".join([table] * 9)) == "\n".join([table] * 9)
    composed = "\n".join(f"server-1  | llama_new_context: {'x' * 60}" for _ in range(9))
    assert join_wrapped(composed) == composed
    assert join_wrapped("") == ""


def test_tags_around_a_copied_line_are_taken_off() -> None:
    line = '<font color="#2AA1B3"><b>(EngineCore pid=1)</b></font> ERROR 09-01 21:26:21 [a.py:1] x'
    assert without_markup(line) == "(EngineCore pid=1) ERROR 09-01 21:26:21 [a.py:1] x"
    assert without_markup("a < b and </think>") == "a < b and </think>"


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("python3 -m sglang.launch_server --model-path Qwen/Qwen3", "sglang"),
        ("docker run --gpus all image python -m sglang.launch_server --tp 8", "sglang"),
        ("python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3", "vllm"),
        ("user@host:~$ vllm serve Qwen/Qwen3", "vllm"),
        ("1 validation error for ModelConfig", "vllm"),
    ],
)
def test_the_command_in_a_log_names_its_engine(command: str, engine: str) -> None:
    found = explain_log(f"{command}\nRuntimeError: CUDA error: out of memory\n")
    assert found is not None
    assert found[0].name == engine
