"""The history never blocks the daemon: rows are handed over, whatever happens to the disk."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters import history as file_module
from caovand.core.figures.counters import Counters, Reading
from caovand.core.figures.minute import HistoryMark
from caovand.core.figures.track import Track, follow
from caovand.core.health.observation import GpuSample, ProgressCounters
from caovand.core.problem import ProblemError
from caovand.daemon.records import history_writer
from caovand.daemon.records.history import History
from caovand.daemon.records.history_writer import HistoryWriter
from tests.patience import LIMIT_S, eventually, soon

MARK = HistoryMark(1_800_000_000.0, "main", "mode", "fast")


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def writer(
    tmp_path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[HistoryWriter]:
    monkeypatch.setattr(history_writer, "RETRY_S", 0.01)
    one = HistoryWriter(tmp_path / "history.db", 10_000, notices.append)
    yield one
    one.stop(10)


def marks(path: Path) -> list[str]:
    """The texts of the marks in the file."""
    if not path.is_file():
        return []
    link = sqlite3.connect(path)
    try:
        return [text for (text,) in link.execute("SELECT text FROM marks ORDER BY rowid")]
    except sqlite3.Error:
        return []
    finally:
        link.close()


def mark(text: str) -> HistoryMark:
    return HistoryMark(MARK.at, "main", "mode", text)


def test_what_was_handed_over_is_on_the_disk_after_a_stop(writer: HistoryWriter) -> None:
    writer.put(mark("a"))
    writer.put(mark("b"), mark("c"))
    writer.stop(10)
    assert marks(writer.path) == ["a", "b", "c"]
    assert writer.problem is None


def test_a_disk_that_is_full_for_a_while_loses_nothing(
    writer: HistoryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, real = threading.Event(), file_module.write
    full.set()

    def write(link: sqlite3.Connection, rows: Any) -> None:
        if full.is_set():
            raise sqlite3.OperationalError("database or disk is full")
        real(link, rows)

    monkeypatch.setattr(file_module, "write", write)
    writer.put(mark("a"))
    eventually(lambda: writer.problem)
    problem = writer.problem
    assert problem is not None
    assert str(problem).startswith(f"cannot write {writer.path}: database or disk is full; ")
    assert "metrics are shown and served" in problem.remedy
    writer.put(mark("b"))
    full.clear()
    eventually(lambda: marks(writer.path) == ["a", "b"])
    eventually(lambda: writer.problem is None)


def test_a_hung_disk_keeps_the_latest_rows_and_never_the_caller(
    writer: HistoryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, real = threading.Event(), file_module.write
    inside = threading.Event()

    def write(link: sqlite3.Connection, rows: Any) -> None:
        inside.set()
        assert hangs.wait(60)
        real(link, rows)

    monkeypatch.setattr(file_module, "write", write)
    monkeypatch.setattr(history_writer, "BACKLOG", 10)
    monkeypatch.setattr(history_writer, "HUNG_S", 0.0)
    writer.put(mark("first"))
    assert inside.wait(60)
    for number in range(25):
        writer.put(mark(str(number)))
    assert writer.lost == 16
    eventually(lambda: writer.problem and "has not answered" in str(writer.problem))
    hangs.set()
    writer.stop(10)
    assert marks(writer.path) == ["first", *map(str, range(15, 25))]


def test_a_broken_file_is_set_aside_and_another_begun(
    writer: HistoryWriter, notices: list[str]
) -> None:
    writer.path.write_bytes(b"no database, and long enough to be looked at " * 100)
    writer.put(mark("a"))
    eventually(lambda: marks(writer.path) == ["a"])
    assert writer.path.with_name("history.db.unreadable").exists()
    (text,) = notices
    assert text.startswith(f"cannot use {writer.path}: it is damaged; moved to history.db.unread")


def test_a_file_that_breaks_while_it_is_used_is_set_aside_too(
    writer: HistoryWriter, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = file_module.write, [True]

    def write(link: sqlite3.Connection, rows: Any) -> None:
        if broken.pop() if broken else False:
            raise sqlite3.DatabaseError("database disk image is malformed")
        real(link, rows)

    monkeypatch.setattr(file_module, "write", write)
    writer.put(mark("a"))
    eventually(lambda: marks(writer.path) == ["a"])
    assert len(notices) == 1


def test_without_a_thread_rows_wait_for_the_next_try(
    writer: HistoryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        writer.put(mark("a"))
        assert "a thread cannot be started" in str(writer.problem)
    writer.put(mark("b"))
    eventually(lambda: marks(writer.path) == ["a", "b"])


def test_a_folder_that_is_not_there_yet_is_a_problem_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_writer, "RETRY_S", 0.01)
    one = HistoryWriter(tmp_path / "later" / "history.db", 10_000, lambda _: None)
    one.put(mark("a"))
    eventually(lambda: one.problem)
    (tmp_path / "later").mkdir()
    eventually(lambda: marks(one.path) == ["a"])
    one.stop(10)


# -- by the minute --------------------------------------------------------------------------


class Clock:
    """Both clocks of a daemon, which a test moves."""

    def __init__(self) -> None:
        self.unix, self.steady = 1_800_000_030.0, 100.0

    def pass_(self, seconds: float) -> None:
        self.unix += seconds
        self.steady += seconds


def story(
    folder: Path,
    act: Callable[[History, Clock], Coroutine[Any, Any, None]],
    notices: list[str] | None = None,
    days: int = 10_000,
) -> None:
    async def run() -> None:
        clock = Clock()
        told = notices if notices is not None else []
        one = History(
            folder, days, lambda _, text: told.append(text), lambda: clock.unix,
            lambda: clock.steady,
        )  # fmt: skip
        try:
            await asyncio.wait_for(act(one, clock), LIMIT_S)
        finally:
            one.close(10)

    asyncio.run(run())


def counted(track: Track, tokens: float, at: float) -> Track:
    progress = ProgressCounters(tokens, 0, 0, 0, 0.25, 1.0, 0.0, 0, 0, None, at)
    return follow(track, Reading(progress, Counters(generation_tokens=tokens)))


def test_each_minute_is_kept_with_what_was_counted_in_it(tmp_path: Path) -> None:
    async def act(one: History, clock: Clock) -> None:
        track, tokens = Track(), 0.0
        for _ in range(30):  # 150 s from half past on: the rest of a minute, and two more
            clock.pass_(5.0)
            tokens += 50
            track = counted(track, tokens, clock.steady)
            one.take("main", track, True)
            card = GpuSample(3, 500, 1000, 50, 60, 100.0, clock.steady, energy_j=tokens * 10)
            one.take_cards([card])
            one.turn()
        one.mark("main", "restart", "hang")
        found: dict[str, Any] = {}

        async def ready() -> bool:
            found.update(await one.read("main", 3600, 1000))
            return len(found["at"]) == 3 and len(found["marks"]) == 2

        await soon(ready)
        assert found["at"] == [1_800_000_000, 1_800_000_060, 1_800_000_120]
        rates = found["figures"]["generation_tokens_per_s"]
        assert rates[1:] == [10.0, 10.0]
        assert found["figures"]["up"] == [1.0, 1.0, 1.0]
        assert found["cards"]["3"]["power_w"] == [100.0] * 3
        assert [(m["kind"], m["text"]) for m in found["marks"]][1] == ("restart", "hang")
        assert (found["problem"], found["days"]) == ("", 10_000)

    story(tmp_path, act)


def test_the_minute_under_way_is_kept_when_the_daemon_ends(tmp_path: Path) -> None:
    async def act(one: History, clock: Clock) -> None:
        one.take("main", Track(), False)
        clock.pass_(5.0)
        one.take("main", counted(Track(), 40, clock.steady), True)
        one.turn()

    story(tmp_path, act)
    link = sqlite3.connect(tmp_path / "history.db")
    row = link.execute("SELECT seconds, up_s, generation_tokens FROM minutes").fetchone()
    assert row == (5.0, 5.0, 40.0)


def test_a_problem_is_told_once_and_its_end_too(
    tmp_path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_writer, "RETRY_S", 0.01)

    async def act(one: History, clock: Clock) -> None:
        def told() -> bool:
            one.turn()
            one.turn()
            return bool(one.text)

        await soon(told)
        assert (tmp_path / "later").mkdir() is None
        await soon(lambda: not told())

    story(tmp_path / "later", act, notices)
    first, second = notices
    assert first.startswith(f"cannot write {tmp_path}/later/history.db: unable to open")
    assert second == f"{tmp_path}/later/history.db is writable again"


def test_turned_off_nothing_is_kept_and_asking_says_how_to_turn_it_on(tmp_path: Path) -> None:
    async def act(one: History, clock: Clock) -> None:
        for number in range(50):
            one.take("main", counted(Track(), number, clock.steady), True)
            one.take_cards([GpuSample(0, 1, 2, None, None, None, clock.steady)])
            clock.pass_(60)
            one.turn()
        assert not one._tallies
        assert not one._samples, "or they would grow for ever"
        with pytest.raises(ProblemError, match=r"\[history\] days is 0; set it"):
            await one.read("main", 3600, 10)

    story(tmp_path, act, days=0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_is_a_problem_for_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    async def act(one: History, clock: Clock) -> None:
        monkeypatch.setattr(file_module, "read", broken)
        with pytest.raises(ProblemError, match=r"cannot read .*history\.db: database disk image"):
            await one.read("main", 3600, 10)

    story(tmp_path, act)
