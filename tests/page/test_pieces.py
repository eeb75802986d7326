"""The parts of the page that need no connection: columns, readers' messages, access."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.adapters.servers.server_process import PAGE
from caovand.adapters.system import processes
from caovand.core.problem import Problem
from caovand.page import charts, files
from caovand.page.access import Access
from caovand.page.on_cards import on_cards
from caovand.page.reader import MAX_EVENTS, MAX_LINES, Reader, mark_of
from tests.daemon_process import ROOT

STEP = 60
values = st.none() | st.floats(0, 1e6)
minutes = st.lists(st.integers(0, 50), unique=True).map(lambda found: [STEP * n for n in found])
CARD = ("used_mib", "temperature", "utilization", "power_w", "throttled")


@st.composite
def answers(draw: st.DrawFn) -> dict[str, Any]:
    """What the `history` op may answer."""

    def columns(names: tuple[str, ...]) -> dict[str, Any]:
        at = sorted(draw(minutes))
        return {
            "at": at,
            **{n: draw(st.lists(values, min_size=len(at), max_size=len(at))) for n in names},
        }

    own = columns(("up", "running"))
    cards = {str(n): columns(CARD) for n in range(draw(st.integers(0, 3)))}
    at = own.pop("at")
    return {
        "at": at, "figures": own, "cards": cards, "marks": [], "marks_left_out": 0, "step_s": STEP,
        "since": 0, "until": 0, "problem": "",
    }  # fmt: skip


@given(answers())
def test_all_columns_have_the_length_of_the_times_and_lose_no_value(answer: dict[str, Any]) -> None:
    found = charts.history_columns(answer)
    times = found["times"]
    assert times == sorted(times)
    assert all(after - before == STEP for before, after in pairwise(times))
    for series in (found["series"], *found["cards"].values()):
        assert {len(column) for column in series.values()} <= {len(times)}
    for name, column in answer["figures"].items():
        kept = dict(zip(times, found["series"][name], strict=True))
        assert [kept[at] for at in answer["at"]] == column
        assert sum(v is not None for v in kept.values()) == sum(v is not None for v in column)


@given(answers())
def test_the_cards_line_is_known_where_one_of_them_is(answer: dict[str, Any]) -> None:
    found = charts.history_columns(answer)
    for name, shown, _ in charts.OVER_CARDS if found["cards"] else ():
        columns = [card[name] for card in found["cards"].values()]
        for combined, *own in zip(found["series"][shown], *columns, strict=True):
            known = [value for value in own if value is not None]
            assert (combined is None) == (not known)
            assert combined is None or combined >= min(known) - 1e-6


def event(seq: int, at: float = 0.5) -> dict[str, Any]:
    return {"seq": seq, "at": at, "text": "x"}


def kinds(data: bytes) -> list[str]:
    return [line[7:] for line in data.decode().splitlines() if line.startswith("event: ")]


def test_a_slow_reader_gets_the_newest_status_and_every_event() -> None:
    reader = Reader()
    for number in range(5):
        reader.put("status", b"event: status\ndata: %d\n\n" % number)
        reader.put_events([event(number + 1)])
        reader.put_lines([f"line {number}"], number)
    data = reader.take()
    assert kinds(data) == ["status", *["event"] * 5, "log"]
    assert b"data: 4\n" in data
    assert reader.take() == b""


def test_what_a_reader_has_not_taken_is_bounded() -> None:
    reader = Reader()
    reader.put_lines(["x"] * MAX_LINES * 3, 1)
    log = json.loads(reader.take().decode().split("data: ")[1])
    assert len(log["lines"]) == MAX_LINES
    reader.put_events([event(n) for n in range(1, MAX_EVENTS + 1)])
    assert not reader.lost
    reader.put_events([event(MAX_EVENTS + 1)])
    assert reader.lost


@given(st.lists(st.integers(1, 30), min_size=1), st.integers(0, 40), st.booleans())
def test_no_event_comes_twice_and_none_is_left_out(
    counts: list[int], seen: int, same_daemon: bool
) -> None:
    """Whoever comes again has seen some of this daemon's events, or some of an earlier one's."""
    reader = Reader(mark_of(event(seen, 0.5 if same_daemon else 0.25)) if seen else "")
    for up_to in sorted(counts):
        reader.put_events([event(n) for n in range(1, up_to + 1)])
    ids = [line[4:] for line in reader.take().decode().splitlines() if line[:4] == "id: "]
    known = same_daemon and seen <= min(counts)
    first = seen + 1 if known else 1
    assert ids == [mark_of(event(n)) for n in range(first, max(counts) + 1)]


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_header_is_a_fault_or_the_token(text: str, other: str) -> None:
    access = Access("127.0.0.1:1", "right")
    assert isinstance(access.knows_host(text), bool)
    assert isinstance(access.is_own(text, other), bool)
    assert not access.admits({"caovan_page": text}, other)


def test_bound_to_an_address_of_the_network_any_name_leads_here() -> None:
    assert Access("0.0.0.0:1", "t").knows_host("box.example")
    assert not Access("[::1]:1", "").knows_host("box.example")
    assert Access("[::1]:1", "").knows_host("[::1]:1")


def test_the_login_page_shows_a_problem_as_text_not_as_html() -> None:
    page = files.login(b"a<!--problem-->b", Problem("log in", "<script>", "try"))
    assert b"<script>" not in page
    assert b"&lt;script&gt;" in page
    assert files.login(b"a<!--problem-->b", None) == b"a<!--problem-->b"


def test_only_files_that_a_page_is_made_of_are_served(tmp_path: Path) -> None:
    for name in ("index.html", "a.js", "b.py", "c.js~", ".hidden"):
        (tmp_path / name).write_text("x")
    (tmp_path / "folder.js").mkdir()
    assert files.load(tmp_path).keys() == {"index.html", "a.js"}


PROGRAM = """
import sys
sys.modules["aiohttp"] = {module}
from caovand.page.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("module", "words", "problem"),
    [
        ("None", [], str(PAGE.no_library)),
        ("sys", ["--token-file", "/nowhere"], "cannot read [page] token_file /nowhere: No such"),
    ],
)
def test_what_keeps_it_from_serving_is_one_line(
    module: str, words: list[str], problem: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module), "--listen", "127.0.0.1:9",
         "--listener", "0", "--socket", "/nowhere", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert problem in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_one_whose_daemon_is_gone_already_ends_at_once() -> None:
    words = ["--listen", "127.0.0.1:9", "--listener", "0", "--socket", "/nowhere"]
    words += ["--parent", "1"]
    done = subprocess.run([sys.executable, "-m", "caovand.page", *words], cwd=ROOT, check=False)
    assert done.returncode == 1


US = os.getpid()


def card(gpu: int, engine_mib: int | None, *engine_pids: int) -> dict[str, Any]:
    """What the daemon knows of a card's memory."""
    return {"gpu": gpu, "engine_mib": engine_mib, "engine_pids": list(engine_pids)}


def of_daemon(*memory: dict[str, Any], users: list[list[int]], **slots: Any) -> dict[str, Any]:
    """A status of an engine that serves, with these processes on each of two cards."""
    return {
        "served": {"name": "m"}, "figures": {"memory": list(memory)},
        "gpus": [{"index": index, "users": users} for index in (0, 1)],
        "slots": [{"name": name, **own} for name, own in slots.items()],
    }  # fmt: skip


def test_processes_on_cards_are_named_the_largest_first_and_the_engine_s_are_known() -> None:
    status = of_daemon(card(0, 500, US), users=[[1, 20], [US, 500], [2**22 + 1, 30]])
    first, *others = on_cards(status, "")
    assert first == {
        "gpu": 0, "pid": US, "name": processes.name_of(US), "mib": 500, "own": True,
    }  # fmt: skip
    assert first["name"]
    assert [(one["pid"], one["own"]) for one in others[:2]] == [(2**22 + 1, False), (1, False)]
    assert others[0]["name"] == "", "it is gone"
    assert [(one["gpu"], one["own"]) for one in others[2:]] == [(1, False)] * 3


def test_processes_of_another_host_have_no_name_and_nobody_knows_whose_they_are() -> None:
    status = of_daemon(card(0, None), users=[[US, 500]])
    found = [(one["name"], one["own"]) for one in on_cards(status, "")]
    assert found == [("", None), (processes.name_of(US), False)]


def test_a_process_is_the_engine_s_of_the_model_that_is_shown() -> None:
    mine = {"served": {"name": "b"}, "figures": {"memory": [card(1, 9, US)]}}
    status = of_daemon(users=[[US, 9]], a={}, b=mine)
    assert [one["own"] for one in on_cards(status, "b")] == [False, True]
    assert [one["own"] for one in on_cards(status, "a")] == [False, False]


def test_a_process_cannot_name_itself_so_that_it_moves_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "a\nb\x1b[2J\n")
    found = on_cards(of_daemon(users=[[US, 9]]), "")
    assert found[0]["name"] == "a\\nb\\x1b[2J"
