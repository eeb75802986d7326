"""The daemon's log: one format for each reader, and an engine that never waits for it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Mapping
from typing import Any

import pytest

from caovand.adapters import log
from caovand.adapters.log import Echo, choose_format, configure, engine_line
from tests.patience import eventually


@pytest.mark.parametrize(
    ("wanted", "environ", "terminal", "chosen"),
    [
        (None, {}, True, "console"),
        (None, {}, False, "json"),
        (None, {"JOURNAL_STREAM": "8:1"}, False, "journald"),
        (None, {"JOURNAL_STREAM": ""}, False, "json"),
        ("json", {"JOURNAL_STREAM": "8:1"}, True, "json"),
        ("console", {}, False, "console"),
    ],
)
def test_the_format_fits_where_the_output_goes(
    wanted: str | None, environ: Mapping[str, str], terminal: bool, chosen: str
) -> None:
    assert choose_format(wanted, environ, terminal) == chosen


def logged(kind: str, level: str = "debug") -> str:
    stream = io.StringIO()
    logger = configure(level, kind, stream)
    logger.debug("looked")
    logger.info("STOPPED -> STARTING", generation=3)
    logger.warning("odd\nthing")
    logger.error("broken")
    return stream.getvalue()


def test_json_has_one_object_a_line() -> None:
    entries: list[dict[str, Any]] = [json.loads(line) for line in logged("json").splitlines()]
    assert [entry["level"] for entry in entries] == ["debug", "info", "warning", "error"]
    assert (entries[1]["event"], entries[1]["generation"]) == ("STOPPED -> STARTING", 3)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", entries[1]["timestamp"])


def test_journald_has_a_priority_before_each_line() -> None:
    assert logged("journald").splitlines() == [
        "<7>looked", "<6>STOPPED -> STARTING generation=3", "<4>odd | thing", "<3>broken",
    ]  # fmt: skip


def test_people_get_a_time_a_level_and_the_words() -> None:
    text = logged("console")
    assert re.search(r"\d\d:\d\d:\d\d.*info.*STOPPED -> STARTING.*generation=3", text)
    assert "\x1b" not in text


def test_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for variable, coloured in ((None, True), ("1", False)):
        if variable:
            monkeypatch.setenv("NO_COLOR", variable)
        else:
            monkeypatch.delenv("NO_COLOR", raising=False)
        stream = Terminal()
        configure("info", "console", stream).info("hello")
        assert "hello" in stream.getvalue()
        assert ("\x1b" in stream.getvalue()) == coloured


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("error", 1)])
def test_less_severe_messages_are_left_out(level: str, count: int) -> None:
    assert len(logged("journald", level).splitlines()) == count


# -- the engine's lines ---


def test_engine_lines_in_each_format() -> None:
    line = '(APIServer pid=7) ERROR 11-20 10:00:00 [x.py:1] "quoted" é'
    assert engine_line("console", "tabby", line) == f"  tabby | {line}"
    assert engine_line("journald", "tabby", line) == f"<3>tabby: {line}"
    entry = json.loads(engine_line("json", "tabby", line))
    assert (entry["event"], entry["logger"], entry["level"]) == (line, "tabby", "error")


@pytest.mark.parametrize(
    ("line", "priority"),
    [("INFO all well", 6), ("WARNING odd", 4), ("CRITICAL bad", 3), ("no level", 6), ("", 6)],
)
def test_the_engine_s_own_level_is_kept(line: str, priority: int) -> None:
    assert engine_line("journald", "tabby", line) == f"<{priority}>tabby: {line}"


def test_lines_are_echoed_in_order() -> None:
    stream = io.StringIO()
    echo = Echo("console", stream)
    for n in range(2000):
        echo.add("tabby", [f"{n}"])
    eventually(lambda: stream.getvalue().count("\n") == 2000)
    assert stream.getvalue().split() == [w for n in range(2000) for w in ("tabby", "|", str(n))]
    assert echo.left_out == 0


def test_a_stalled_reader_costs_lines_and_never_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "ECHO_BYTES", 1000 * (1 + log.LINE_BYTES))
    go, stuck = threading.Event(), threading.Event()

    class Stalled(io.StringIO):
        def write(self, text: str) -> int:
            stuck.set()
            assert go.wait(60)
            return super().write(text)

    stream = Stalled()
    echo = Echo("console", stream)
    echo.add("tabby", ["first"])
    assert stuck.wait(30)
    for _ in range(50):
        echo.add("tabby", ["x"] * 100)  # would hang here
    assert echo.left_out == 4000
    go.set()
    eventually(lambda: stream.getvalue().count("tabby | x") == 1000)
    told = "  caovand | (4000 lines dropped: the reader was too slow)"
    assert stream.getvalue().splitlines().count(told) == 1
    echo.add("tabby", ["x"] * 1000)
    eventually(lambda: stream.getvalue().count("tabby | x") == 2000)


def test_a_reader_that_is_gone_costs_lines_and_nothing_else() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "w", buffering=1)
    echo = Echo("console", stream)
    echo.add("tabby", ["x"] * 3)
    eventually(lambda: echo.left_out == 3)
    echo.add("tabby", ["x"] * 2)
    eventually(lambda: echo.left_out == 5)
    # What the buffer still holds cannot be written either.
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_the_daemons_own_words_wait_for_no_reader_either() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as reader, os.fdopen(write_end, "w") as writer:
        echo = Echo("console", writer)
        logger = configure("info", "journald", echo)
        for number in range(5000):
            logger.info(f"{number} {'x' * 100}")
        assert not echo.drain(0.01), "nobody reads the pipe"
        seen = [reader.readline() for _ in range(5000)]
        assert [int(line[3:].split(" ")[0]) for line in seen] == list(range(5000))
        assert echo.drain(60)


STRANGE = "a\x1b]0;owned\x07b\x9b31mc\x08\u202ed\te 训"
WRITTEN = "a\\x1b]0;owned\\x07b\\x9b31mc\\x08\\u202ed\te 训"


@pytest.mark.parametrize("kind", ["console", "journald", "json"])
def test_control_characters_of_strangers_reach_neither_terminal_nor_journal(kind: str) -> None:
    stream = io.StringIO()
    logger = configure("debug", kind, stream)
    logger.info(STRANGE, name=STRANGE)
    own, engine = stream.getvalue().removesuffix("\n"), engine_line(kind, "tabby", STRANGE)
    for text in (own, engine):
        assert [c for c in text if unicodedata.category(c) == "Cc" and c != "\t"] == []
    if kind == "json":  # programs get what it was
        assert json.loads(own)["event"] == json.loads(engine)["event"] == STRANGE
    else:
        assert WRITTEN in own
        assert engine.endswith(WRITTEN)


def test_journald_has_one_line_for_each_message() -> None:
    stream = io.StringIO()
    configure("debug", "journald", stream).info("a\r\nb\u2028c\nd")
    assert stream.getvalue() == "<6>a\\r | b\\u2028c | d\n"


def test_the_daemon_does_not_load_rich() -> None:
    """structlog would: 5 MB that a daemon keeps for nothing."""
    code = "import sys, caovand.__main__; raise SystemExit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
