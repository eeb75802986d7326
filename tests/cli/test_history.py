"""`caovanctl history`: the stored figures as charts."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.cli.common.drawing import BARS, PLAIN_BARS, sparkline
from caovand.cli.common.printing import EscapingStream, takes_unicode
from caovand.cli.history import lines
from tests.cli.conftest import Ctl
from tests.cli.fake_daemon import FakeDaemon

BEGIN = 1_800_000_000


def answer(**changes: Any) -> dict[str, Any]:
    """Four hours, of which the daemon ran in three."""
    figures = {
        "up": [1.0, 0.5, 1.0],
        "generation_tokens_per_s": [0.0, 40.0, 80.0],
        "requests": [0, 120, 2400],
        "first_token_p50_s": [None, 0.25, 0.5],
        "prefix_hits": [None, None, None],
    }
    return {
        "since": BEGIN, "until": BEGIN + 4 * 3600, "step_s": 3600, "days": 30, "problem": "",
        "at": [BEGIN, BEGIN + 3600, BEGIN + 3 * 3600], "figures": figures,
        "cards": {"1": {"at": [BEGIN], "used_mib": [10_240], "power_w": [None]}},
        "marks": [{"at": BEGIN + 60, "kind": "restart", "text": "hang"}],
        "marks_left_out": 0, **changes,
    }  # fmt: skip


def test_each_figure_is_a_line_with_its_mean_and_its_maximum(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["history"] = answer()
    said = ctl("history", "--since", "4h")
    assert (said.code, said.err) == (0, "")
    head, *rest = said.out.splitlines()
    assert head.startswith("from 2027-")
    assert head.endswith(", 1 h per column")
    assert rest[:4] == [
        "  serving       █▄ █  mean 83.3, max 100 %",
        "  generated      ▄ █  mean 40.0, max 80.0 tokens/s",
        "  requests       ▁ █  mean 840, max 2,400",
        "  first token    ▄ █  mean 375, max 500 ms",
    ]
    assert rest[4:6] == ["GPU 1", "  memory        █     mean 10.0, max 10.0 GiB"]
    assert rest[6].endswith("  restart  hang")
    (request,) = daemon.asked
    assert request.args == {"seconds": 4 * 3600.0, "points": 60}


def test_json_is_the_daemons_own_answer_in_its_finest_steps(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["history"] = answer()
    assert json.loads(ctl("history", "--json").out) == answer()
    (request,) = daemon.asked
    assert request.args == {"seconds": 86_400.0}


def test_events_that_are_left_out_are_counted_with_the_option_that_shows_them(
    daemon: FakeDaemon, ctl: Ctl
) -> None:
    daemon.answers["history"] = answer(marks_left_out=1234)
    *_, text, event = ctl("history", "--since", "30d").out.splitlines()
    assert text == "1,234 earlier events are omitted; `--until 239m` shows them"
    assert event.endswith("  restart  hang")
    assert json.loads(ctl("history", "--json").out)["marks_left_out"] == 1234
    *_, text, _ = ctl("history", "--since=30d", "--until=2h").out.splitlines()
    assert "`--until 359m`" in text
    request = daemon.asked[-1]
    assert request.args["seconds"] == 30 * 86_400 - 7200
    assert time.time() - request.args["until"] == pytest.approx(7200, abs=600)


def test_an_end_before_the_beginning_is_refused(ctl: Ctl) -> None:
    for since, until in (("1h", "1h"), ("1h", "2h")):
        said = ctl("history", f"--since={since}", f"--until={until}")
        assert (said.code, said.out) == (2, "")
        assert "--until is less than a minute shorter than --since" in said.err


def test_without_anything_kept_it_says_why(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["history"] = answer(at=[], marks=[], problem="cannot write x: full; free space")
    said = ctl("history")
    assert (said.code, said.out) == (1, "")
    assert "none was recorded for that time" in said.err
    assert "cannot write x: full; free space" in said.err


def test_what_keeps_the_daemon_from_writing_is_shown(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["history"] = answer(problem="cannot write x: full")
    assert ctl("history").out.splitlines()[-1] == "warning: cannot write x: full"


@pytest.mark.parametrize("text", ["", "1", "0h", "24", "1w", "367d", "-1h", "1.5h", "999999d"])
def test_a_length_that_is_none_is_refused(ctl: Ctl, text: str) -> None:
    said = ctl("history", f"--since={text}")
    assert said.code == 2
    assert "is not a length from 1m to 366d, such as 90m or 24h" in said.err


@pytest.mark.parametrize(
    ("encoding", "takes"), [("ascii", False), ("latin-1", False), ("UTF-8", True)]
)
def test_a_stream_takes_unicode_or_not(encoding: str, takes: bool) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    assert takes_unicode(EscapingStream(stream)) is takes  # type: ignore[arg-type]


def test_without_unicode_the_bars_are_plain() -> None:
    assert "  generated      = @" in list(lines(answer(), PLAIN_BARS))[2]


@given(st.lists(st.none() | st.floats(0, 1e9)), st.sampled_from([BARS, PLAIN_BARS]))
def test_a_sparkline_has_a_character_for_each_value_and_more_is_never_lower(
    values: list[float | None], bars: str
) -> None:
    drawn = sparkline(values, bars)
    assert len(drawn) == len(values)
    heights = [bars.index(character) for character in drawn]
    known = sorted((value or 0.0, height) for value, height in zip(values, heights, strict=True))
    assert [height for _, height in known] == sorted(heights)
    assert all((height > 0) == bool(value) for value, height in known)
