"""The live screen, drawn: golden screens in tests/cli/top, `--rewrite` shows a change as a diff."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.cli.top import parts, screen
from caovand.cli.top.view import CardProcess, EventLine, ScreenPage, TerminalStyle, View
from caovand.core.printable import one_line
from tests.cli.fake_daemon import status

SCREENS = Path(__file__).parent / "top"
LOOKS = {
    "colour": TerminalStyle(),
    "plain": TerminalStyle(colour=False),
    "ascii": TerminalStyle(unicode=False, colour=False),
}
SIZES = ((80, 24), (120, 40))


def card(index: int, **changes: Any) -> dict[str, Any]:
    """A card as the status has it."""
    return {
        "index": index, "used_mib": 18_944, "total_mib": 22_528, "utilization": 98,
        "temperature": 71, "power_w": 214.3, "throttled": "", "fault": "",
        "users": [[4242, 18_432], [977, 300]], **changes,
    }  # fmt: skip


def memory(index: int) -> dict[str, Any]:
    """Whose a card's memory is."""
    sizes = {"weights": 9_216, "context": 512, "activations": 1_024, "graphs": 614, "kv": 6_656}
    return {
        "gpu": index, "total_mib": 22_528, "used_mib": 18_944, "engine_mib": 18_432,
        "others_mib": 512,
        "parts": {name: {"mib": mib, "from": "reported"} for name, mib in sizes.items()},
    }  # fmt: skip


FIGURES = {
    **status()["figures"],
    "running": 3.0, "waiting": 2.0, "kv_cache_usage": 0.42, "prefix_hits": 0.31,
    "first_token_s": {"p50": 0.068, "p99": 0.2437, "mean": 0.1},
    "token_s": {"p50": 0.0081, "p99": 0.0246, "mean": 0.01},
    "drafting": {"accepted": [0.91, 0.78, 0.6], "tokens_per_step": 3.29},
    "memory": [memory(0), memory(1)],
}  # fmt: skip
AGES = [295.0 - 5 * step for step in range(60)]
RECENT = {
    "age_s": AGES,
    "generation_tokens_per_s": [max(0.0, 3.0 * (step - 8)) for step in range(60)],
    "prompt_tokens_per_s": [22.5 if step % 7 else 900.0 for step in range(60)],
    "requests_per_s": [None, *(0.2 * (step % 5) for step in range(59))],
}
HAPPENINGS = (
    EventLine("06:45:28", "daemon", "caovand 0.1.0 started"),
    EventLine("06:46:02", "failure", "SERVING -> RECYCLING: engine core exited unexpectedly; the"
              " engine ended (exit status 0) in phase serving; the same plan again"),
    EventLine("06:46:02", "incident", "incident 0001-engine-died: caovanctl incidents show 1"),
    EventLine("06:46:03", "state", "BACKOFF -> STARTING"),
    EventLine("06:46:56", "state", "STARTING -> SERVING"),
)  # fmt: skip
PROCESSES = tuple(
    one
    for gpu in (0, 1)
    for one in (
        CardProcess(gpu, 977, 300, "", ""),
        CardProcess(
            gpu, 4242 + gpu, 18_432, "caovan", f"VLLM::Worker_TP{gpu}", 1.04, 6_144 + gpu, 374.0
        ),
    )
)
SERVES = View(
    moment="06:53:10",
    status=status(figures=FIGURES, gpus=[card(0), card(1, throttled="its power limit")],
                  since_s=374.0, restarts=1),
    recent=RECENT, processes=PROCESSES, event_lines=HAPPENINGS,
)  # fmt: skip
STARTS = View(
    moment="06:53:10",
    status=status(state="STARTING", served=None, phase="load", progress=0.42, detail="3 of 7",
                  since_s=31.0, gpus=[card(0, used_mib=9_000)]),
    recent={}, event_lines=HAPPENINGS[:4], note="no events: permission denied",
)  # fmt: skip
WAITS = View(
    moment="06:53:10",
    status=status(
        state="BACKOFF", served=None, engine_pid=None, mtp=None, retry_in_s=12.0, failures=2,
        reason="the engine ended in phase load", last_failure_s=3.0,
        last_failure={"failure": "device-oom-load", "text": "CUDA out of memory"},
        warnings=["/var/lib/caovan has 0.2 GiB left"],
        degraded={"rungs": ["graphs-off", "kv-fp8"], "since": None, "why": ["less memory"],
                  "back": "`caovanctl retry --full`"},
        gpus=[card(0, fault="GPU is lost")],
    ),
    recent={}, event_lines=HAPPENINGS,
)  # fmt: skip
CLUSTER = {
    "role": "head", "name": "gpu1", "nodes": 4, "missing": 2, "joined": ["gpu2"], "lost": ["gpu3"],
    "refused": [], "serving": 0,
}  # fmt: skip
NODES = replace(SERVES, status={**SERVES.status, "cluster": CLUSTER})
LOST = replace(
    SERVES, lost="cannot reach caovand at /run/caovan/status: no daemon listens there", lost_s=7.0
)
NO_CARDS = replace(
    SERVES, status=status(figures={**FIGURES, "memory": [], "waiting": 0.0}), processes=()
)
LOG = replace(
    SERVES, page=ScreenPage.LOG, body=tuple(f"INFO line {n} \x1b[31mred" for n in range(60))
)
VIEWS = {
    "serves": (SERVES, ScreenPage.MAIN),
    "starts": (STARTS, ScreenPage.MAIN),
    "waits": (WAITS, ScreenPage.MAIN),
    "nodes": (NODES, ScreenPage.MAIN),
    "lost": (LOST, ScreenPage.MAIN),
    "no-cards": (NO_CARDS, ScreenPage.MAIN),
    "log": (LOG, ScreenPage.LOG),
    "help": (SERVES, ScreenPage.HELP),
    "mode": (SERVES, ScreenPage.MODE),
}


def drawn(name: str, look: str, width: int, height: int) -> str:
    """A screen between lines that show how wide it is, spaces at the ends left out."""
    view, page = VIEWS[name]
    found = screen.lines(view, page, width, height, LOOKS[look])
    edge = f"+{'-' * width}+"
    return "\n".join([edge, *(line.plain.rstrip() for line in found), edge, ""])


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", VIEWS)
def test_a_screen_is_drawn_as_before(name: str, size: tuple[int, int], rewrite: bool) -> None:
    for look in ("plain", "ascii") if name == "serves" else ("plain",):
        file = SCREENS / f"{name}-{size[0]}x{size[1]}-{look}.txt"
        found = drawn(name, look, *size)
        if rewrite:
            file.write_text(found, encoding="utf-8")
        assert found == file.read_text(encoding="utf-8"), f"{file} (--rewrite)"


def test_every_golden_screen_is_one_of_today() -> None:
    sizes = [f"{width}x{height}" for width, height in SIZES]
    looks = [
        (name, look) for name in VIEWS for look in ("plain", "ascii")[: 1 + (name == "serves")]
    ]
    known = {f"{name}-{size}-{look}.txt" for name, look in looks for size in sizes}
    assert {file.name for file in SCREENS.iterdir()} == known


@pytest.mark.parametrize("name", VIEWS)
@given(width=st.integers(1, 200), height=st.integers(1, 70), look=st.sampled_from(list(LOOKS)))
def test_a_screen_fits_every_terminal(name: str, width: int, height: int, look: str) -> None:
    view, page = VIEWS[name]
    found = screen.lines(view, page, width, height, LOOKS[look])
    assert len(found) == height
    assert all(line.cell_len <= width for line in found)
    assert all(line.plain.isprintable() for line in found)
    if look == "ascii":
        assert all(line.plain.isascii() for line in found)
    if width >= 40 and height >= 10:
        assert ("NO ANSWER" if view.lost else view.status["state"]) in found[0].plain or (
            page is ScreenPage.HELP
        )


@given(st.text(), st.text(), st.sampled_from(list(LOOKS)))
def test_no_text_of_strangers_gets_through_or_moves_a_line(
    command: str, event: str, look: str
) -> None:
    view = replace(
        SERVES,
        processes=(CardProcess(0, 1, 1, command, command),),
        event_lines=(EventLine("06:00:00", "state", event),),
    )
    found = screen.lines(view, ScreenPage.MAIN, 80, 24, LOOKS[look])
    assert len(found) == 24
    assert all(one_line(line.plain) == line.plain and line.cell_len <= 80 for line in found)


def test_narrow_terminals_go_without_what_processes_use_of_the_host_column_by_column() -> None:
    def columns(width: int) -> list[str]:
        head, row, *_ = (line.plain.split() for line in parts.processes(PROCESSES, width))
        assert row[-1] == "VLLM::Worker_TP0"
        return head[4:]

    use = ["CPU", "host", "MiB", "time"]
    assert columns(80) == [*use, "command"]
    assert columns(79) == [*use[:3], "command"]
    assert columns(72) == [*use[:1], "command"]
    assert columns(62) == columns(40) == ["command"]


def test_a_small_terminal_is_asked_for_more() -> None:
    found = [line.plain for line in screen.lines(SERVES, ScreenPage.MAIN, 39, 24, TerminalStyle())]
    assert "".join(found).startswith("caovanctl topneeds 40x10, this is 39x24; q quits")


def test_many_cards_leave_room_for_what_happens() -> None:
    gpus = [card(index) for index in range(8)]
    view = replace(SERVES, status={**SERVES.status, "gpus": gpus})
    found = [line.plain for line in screen.lines(view, ScreenPage.MAIN, 80, 24, TerminalStyle())]
    assert sum(line.startswith("  GPU ") for line in found) >= 6
    assert any("STARTING -> SERVING" in line for line in found)


def test_colours_tell_the_parts_of_a_card_apart_or_letters_do() -> None:
    coloured, letters = (
        next(line for line in parts.cards(SERVES.status, 120, look))
        for look in (LOOKS["colour"], LOOKS["plain"])
    )
    styles = [str(span.style) for span in coloured.spans]
    assert [name for name in styles if name in ("blue", "green", "bright_black")] == [
        "blue", "green", "bright_black",
    ]  # fmt: skip
    assert "W" * 18 in letters.plain
    assert "K" * 14 in letters.plain
    assert "█" not in letters.plain


@given(
    used=st.integers(0, 30_000),
    engine=st.none() | st.integers(0, 30_000),
    sizes=st.dictionaries(st.sampled_from(["weights", "kv", "graphs"]), st.integers(0, 40_000)),
)
def test_the_parts_of_a_card_are_the_card(
    used: int, engine: int | None, sizes: dict[str, int]
) -> None:
    found = parts.shares(
        {"used_mib": used, "total_mib": 30_000},
        {"engine_mib": engine, "parts": {name: {"mib": mib} for name, mib in sizes.items()}},
    )
    assert sum(found.values()) == pytest.approx(30_000)
    assert all(size >= 0 for size in found.values())
    assert found["free"] == 30_000 - used


@given(
    st.lists(st.tuples(st.floats(0, 400), st.none() | st.floats(0, 1e6)), max_size=80),
    st.integers(8, 50),
)
def test_each_reading_of_five_minutes_is_in_one_column(
    readings: list[tuple[float, float | None]], columns: int
) -> None:
    ages, values = [age for age, _ in readings], [value for _, value in readings]
    found = parts.columns_of(ages, values, columns)
    assert len(found) == columns
    known = [value for age, value in readings if age < 300 and value is not None]
    assert (max((value for value in found if value is not None), default=-1.0)) <= max(
        known, default=-1.0
    ) * (1 + 1e-9) + 1e-9
    assert any(value is not None for value in found) is bool(known)


def test_the_latest_reading_is_on_the_right() -> None:
    assert parts.columns_of([299.9, 150.0, 0.0], [1.0, 2.0, 3.0], 10) == [
        1.0, None, None, None, 2.0, None, None, None, None, 3.0,
    ]  # fmt: skip


def test_the_last_reading_of_an_engine_that_is_gone_is_not_the_latest() -> None:
    def rows(recent: dict[str, Any]) -> list[str]:
        return [line.plain for line in parts.speed(recent, 100, TerminalStyle())]

    assert "tokens/s, max" in rows(RECENT)[0]
    gone = {**RECENT, "age_s": [age + 40 for age in AGES]}
    assert "tokens/s, max" not in rows(gone)[0]
    assert "  max 153" in rows(gone)[0]
