"""Logs of a JSON formatter are read like vLLM's own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caovand.engines.vllm.log.explain import explain
from caovand.engines.vllm.log.json_lines import unpack

TRACEBACK = (
    'Traceback (most recent call last):\n  File "/opt/vllm/v1/engine/core.py", line 9, in f\n'
    "ValueError: No available memory for the cache blocks. Try increasing"
)


def record(message: str, level: str = "INFO", name: str = "vllm.a.core", **more: Any) -> str:
    entries = {"asctime": "2026-11-20 09:00:07,123", "levelname": level, "name": name}
    return json.dumps({**entries, "message": message, **more})


def test_a_record_is_the_line_that_vllm_would_have_written() -> None:
    (line,) = unpack(record("text", processName="EngineCore", process=31))
    assert line == "(EngineCore pid=31) INFO 11-20 09:00:07 [core.py:0] text"
    (line,) = unpack(record("text", processName="MainProcess", process=7, filename="x.py"))
    assert line == "(APIServer pid=7) INFO 11-20 09:00:07 [x.py:0] text"
    assert unpack(record("Started server process", name="uvicorn.error")) == (
        "INFO:     Started server process",
    )


def test_each_line_of_a_message_and_its_traceback_has_the_prefix() -> None:
    lines = unpack(record("first\nValueError: second", exc_info=TRACEBACK))
    assert len(lines) == 5
    assert all(line.startswith("INFO 11-20 09:00:07 [core.py:0] ") for line in lines)


@pytest.mark.parametrize(
    "line",
    ["", "{", "{}", "[1]", '{"message": "no level"}', '{"levelname": "LOUD", "message": "x"}',
     '{"levelname": 3, "message": ["x"]}', "{" * 100_000, '{"a":' * 100_000, "text {}"],
)  # fmt: skip
def test_anything_else_is_left_as_it_is(line: str) -> None:
    assert unpack(line) == (line,)


def test_half_a_character_is_no_trouble_to_print() -> None:
    half = r'{"level": "ERROR", "msg": "ValueError: \ud800"}'
    unpack(half)[0].encode()
    assert unpack(half)[0].endswith("ValueError: ?")
    told = explain(json.dumps({"log": "RuntimeError: \ud800"}))
    assert told.finding is not None
    assert told.finding.text == "RuntimeError: ?"


def test_a_log_of_records_is_explained_with_the_line_of_its_record() -> None:
    log = [
        record("vLLM server version 0.33.0, serving model /m"),
        record("Starting to load model /m..."),
        record("EngineCore failed to start.", "ERROR", exc_info=TRACEBACK),
    ]
    told = explain("\n".join(log))
    assert (told.engine_version, told.reached) == ("0.33.0", "load")
    assert told.finding is not None
    assert (told.finding.failure, told.finding.line) == ("kv-cache-none", 3)


def test_a_record_without_a_time_tells_no_times() -> None:
    told = explain('{"level": "info", "msg": "Starting to load model /m..."}')
    assert [(phase.phase, phase.seconds) for phase in told.phases] == [("load", None)]


def test_what_a_client_sent_is_no_failure_in_a_record_either() -> None:
    prompt = f"Received request: 'EngineCore failed to start.\n{TRACEBACK}'"
    told = explain("\n".join([record("Starting to load model /m..."), record(prompt)]))
    assert told.finding is None
