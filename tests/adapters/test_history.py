"""The history's file: what is written can be read, and the file stays bounded and intact."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest

from caovand.adapters import history
from caovand.adapters.history import UnreadableHistory
from caovand.core.figures.counters import Counters
from caovand.core.figures.minute import CardMinute, HistoryMark, Minute, Tally
from caovand.core.reporting import wire
from caovand.core.reporting.wire import Reply

DAY_S = 86_400
NOW = 1_800_000_000 // DAY_S * DAY_S


def minute(number: int, tokens: float = 600.0, slot: str = "main") -> Minute:
    """The minute with this number, in which so many tokens were generated."""
    total = Counters(generation_tokens=tokens, requests=2, prefix_queries=10, prefix_hits=4)
    found = Tally().add(60.0, True, None).minute(slot, NOW + 60 * number, total)
    return replace(found, running=2.0, first_token_p50_s=0.5, first_token_p99_s=1.0)


def card(number: int, gpu: int = 0) -> CardMinute:
    return CardMinute(gpu, NOW + 60 * number, 1000, 60 + number % 10, 50, 200.0, 12_000, 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def read(path: Path, minutes: int, points: int = 1000, slot: str = "main") -> dict[str, object]:
    return history.read(path, slot, NOW, NOW + 60 * minutes, points)


def test_minutes_cards_and_marks_come_back_as_they_were(path: Path) -> None:
    link = history.open_to_write(path)
    history.write(link, [minute(0), minute(1, 1200.0), card(0), card(1), minute(0, slot="other")])
    history.write(
        link,
        [HistoryMark(NOW + 70.5, "main", "restart", "hang"), HistoryMark(NOW, "", "daemon", "x")],
    )
    history.write(link, [HistoryMark(NOW + 80, "other", "mode", "fast")])
    found = read(path, 10)
    assert (found["step_s"], found["at"]) == (60, [NOW, NOW + 60])
    figures = found["figures"]
    assert isinstance(figures, dict)
    assert figures["generation_tokens_per_s"] == [10.0, 20.0]
    assert figures["prefix_hits"] == [0.4, 0.4]
    assert figures["up"] == [1.0, 1.0]
    assert figures["token_p50_s"] == [None, None]
    assert figures["tokens_per_step"] == [None, None]
    assert found["cards"] == {
        "0": {
            "at": [NOW, NOW + 60], "used_mib": [1000, 1000], "temperature": [60, 61],
            "utilization": [50, 50], "power_w": [200, 200], "throttled": [0, 0],
        }
    }  # fmt: skip
    assert found["marks"] == [
        {"at": NOW, "kind": "daemon", "text": "x"},
        {"at": NOW + 70.5, "kind": "restart", "text": "hang"},
    ]
    assert found["marks_left_out"] == 0


def test_the_earliest_of_many_marks_are_left_out_and_counted(path: Path) -> None:
    link = history.open_to_write(path)
    most = history.LATEST_MARKS
    history.write(link, [HistoryMark(NOW + n, "main", "restart", str(n)) for n in range(most + 7)])
    history.write(link, [HistoryMark(NOW + n, "other", "restart", "") for n in range(9)])
    found = read(path, 10)
    marks = found["marks"]
    assert isinstance(marks, list)
    assert [mark["text"] for mark in marks] == [str(n) for n in range(7, most + 7)]
    assert found["marks_left_out"] == 7


def test_longer_steps_weigh_each_minute_by_what_it_stands_for(path: Path) -> None:
    link = history.open_to_write(path)
    short = replace(minute(1, 100.0), seconds=20.0, up_s=5.0, requests=6, first_token_p50_s=0.1,
                    first_token_p99_s=3.0)  # fmt: skip
    history.write(link, [minute(0), short, replace(minute(2), first_token_p50_s=None, requests=0)])
    found = read(path, 3, points=1)
    figures = found["figures"]
    assert isinstance(figures, dict)
    assert (found["step_s"], found["at"]) == (180, [NOW // 180 * 180])
    assert figures["generation_tokens_per_s"] == [pytest.approx(1300 / 140, abs=1e-3)]
    assert figures["up"] == [pytest.approx(125 / 140, abs=1e-4)]
    assert figures["first_token_p50_s"] == [pytest.approx((0.5 * 2 + 0.1 * 6) / 8, abs=1e-4)]
    assert figures["first_token_p99_s"] == [3.0]


def test_a_month_of_eight_cards_is_small_read_at_once_and_fits_a_frame(path: Path) -> None:
    link = history.open_to_write(path)
    long = 123_456.123456789
    hours = [replace(minute(n, long * n), waiting=long, token_p99_s=long) for n in range(30 * 24)]
    cards = [replace(card(n, gpu), power_w=long) for n in range(30 * 24) for gpu in range(8)]
    marks = [HistoryMark(NOW + n + 0.123, "main", "restart", "x" * 200) for n in range(300)]
    history.write(link, [*hours, *cards, *marks])
    link.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size < (30 << 20) / 60 * 4, "a month of minutes is below 120 MB"
    found = read(path, 30 * 24)
    assert len(wire.encode_reply(Reply("i" * 64, found))) < wire.MAX_BYTES - 1000
    assert isinstance(found["at"], list)
    assert 50 < len(found["at"]) <= 1000


def test_what_is_old_goes_and_its_place_is_used_again(path: Path) -> None:
    link = history.open_to_write(path)
    history.write(link, [minute(n) for n in range(2000)])
    history.prune(link, NOW + 60 * 2000, days=1)
    kept = link.execute("SELECT min(at), count(*) FROM minutes").fetchone()
    assert kept == (NOW + 60 * 560, 1440)
    size = path.stat().st_size
    history.write(link, [minute(n) for n in range(2000, 2500)])
    assert path.stat().st_size <= size + (64 << 10)


def test_no_more_marks_are_kept_than_so_many(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_MARKS", 50)
    link = history.open_to_write(path)
    history.write(link, [HistoryMark(NOW + n, "main", "restart", str(n)) for n in range(120)])
    history.prune(link, NOW, days=1)
    found = [text for (text,) in link.execute("SELECT text FROM marks ORDER BY rowid")]
    assert found == [str(n) for n in range(70, 120)]


def test_a_batch_is_written_whole_or_not_at_all(path: Path) -> None:
    link = history.open_to_write(path)
    history.write(link, [minute(0)])
    bad = replace(minute(2), running=object())  # type: ignore[arg-type]
    with pytest.raises(sqlite3.Error):
        history.write(link, [minute(1), bad])
    assert link.execute("SELECT count(*) FROM minutes").fetchone() == (1,)
    history.write(link, [minute(1)])


@pytest.mark.parametrize("content", [b"x" * 5000, b"SQLite format 3\0" + b"\xff" * 9000])
def test_what_is_no_database_is_broken(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UnreadableHistory):
        history.open_to_write(path)
    path.with_name("history.db-wal").write_bytes(b"rest")
    history.set_aside(path)
    assert path.with_name("history.db.unreadable").read_bytes() == content
    history.open_to_write(path).close()


def test_a_damaged_page_and_a_later_format_are_broken(path: Path) -> None:
    link = history.open_to_write(path)
    history.write(link, [minute(n) for n in range(500)])
    link.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    link.close()
    data = bytearray(path.read_bytes())
    data[4096 * 2 : 4096 * 6] = b"\xa5" * 4096 * 4
    path.write_bytes(data)
    with pytest.raises(UnreadableHistory, match="damaged"):
        history.open_to_write(path)
    path.unlink()
    link = history.open_to_write(path)
    link.execute("PRAGMA user_version = 9")
    link.close()
    with pytest.raises(UnreadableHistory, match="format"):
        history.open_to_write(path)


def test_a_link_is_not_followed_and_a_folder_is_no_history(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "theirs"
    other.write_text("keep")
    path.symlink_to(other)
    with pytest.raises(UnreadableHistory, match="regular"):
        history.open_to_write(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UnreadableHistory, match="regular"):
        history.open_to_write(path)
    assert other.read_text() == "keep"


def test_without_a_file_nothing_is_read_and_none_is_made(path: Path) -> None:
    assert read(path, 5)["at"] == []
    assert not path.exists()


def test_one_reads_while_another_writes(path: Path) -> None:
    link = history.open_to_write(path)
    history.write(link, [minute(0)])
    with history.transaction(link):
        link.execute("DELETE FROM minutes")
        assert read(path, 5)["at"] == [NOW]
    assert read(path, 5)["at"] == []


def test_times_are_seconds_since_1970(path: Path) -> None:
    link = history.open_to_write(path)
    at = int(time.time())
    history.write(link, [replace(minute(0), at=at)])
    assert history.read(path, "main", at - 60, at + 60, 10)["at"] == [at // 60 * 60]
