"""The history in SQLite: written by the daemon's thread, read by any process that needs it.

One transaction per batch, on disk when it returns: a crash loses only what was not handed over yet.
Rows older than the retention are deleted, and so are the oldest of too many marks: the file cannot
grow without bounds.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any
from urllib.parse import quote

from caovand.adapters.files import state_file
from caovand.core.figures.minute import (
    COLUMNS,
    MINUTE_S,
    CardMinute,
    HistoryMark,
    HistoryRow,
    Minute,
)
from caovand.core.units import DAY_S

FILE = "history.db"
FORMAT = 1
MAX_MARKS = 20_000
BUSY_S = 5.0
PIECE_VALUES = 3_500  # per answer, which has to fit a frame of `wire` together with LATEST_MARKS
LATEST_MARKS = 100
DIGITS = 5  # significant digits

TABLES: dict[type[HistoryRow], str] = {Minute: "minutes", CardMinute: "cards", HistoryMark: "marks"}
KEYS = {Minute: "PRIMARY KEY (slot, at)", CardMinute: "PRIMARY KEY (gpu, at)"}
PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",  # NORMAL would lose everything after the last checkpoint
    "wal_autocheckpoint = 100",
    "journal_size_limit = 1048576",
    "cache_size = -256",
)
# How minutes are combined into a longer step; each is weighted by the number of its samples.
SLOT_VALUES = {
    "up": "sum(up_s) / sum(seconds)",
    "prompt_tokens_per_s": "sum(prompt_tokens) / sum(seconds)",
    "generation_tokens_per_s": "sum(generation_tokens) / sum(seconds)",
    "requests": "sum(requests)",
    "preemptions": "sum(preemptions)",
    "running": "avg(running)",
    "waiting": "avg(waiting)",
    "kv_cache_usage": "max(kv_cache_usage)",
    "prefix_hits": "sum(prefix_hits) / nullif(sum(prefix_queries), 0)",
    "tokens_per_step": "1 + sum(accepted_tokens) / nullif(sum(drafts), 0)",
    "first_token_p50_s": "sum(first_token_p50_s * requests)"
    " / nullif(sum(requests * (first_token_p50_s IS NOT NULL)), 0)",
    "first_token_p99_s": "max(first_token_p99_s)",
    "token_p50_s": "sum(token_p50_s * requests) / nullif(sum(requests * (token_p50_s IS NOT NULL)),"
    " 0)",
    "token_p99_s": "max(token_p99_s)",
}
CARD_VALUES = {
    "used_mib": "max(used_mib)",
    "temperature": "max(temperature)",
    "utilization": "avg(utilization)",
    "power_w": "avg(power_w)",
    "throttled": "avg(throttled)",
}


class UnreadableHistory(Exception):
    """The file is not a history that this version reads."""


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open the file, creating it if missing.

    Raises UnreadableHistory, or sqlite3.Error for a failing disk.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UnreadableHistory("it is not a regular file")
    link = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        version = link.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, FORMAT):
            raise UnreadableHistory("this version cannot read its format")
        if link.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise UnreadableHistory("it is damaged")
        for pragma in PRAGMAS:
            link.execute(f"PRAGMA {pragma}")
        with transaction(link):
            for kind, table in TABLES.items():
                columns = ", ".join((*COLUMNS[kind], *([KEYS[kind]] if kind in KEYS else ())))
                ids = " WITHOUT ROWID" if kind in KEYS else ""
                link.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns}){ids}")
            link.execute("CREATE INDEX IF NOT EXISTS marks_at ON marks (at)")
            link.execute(f"PRAGMA user_version = {FORMAT}")
    except BaseException as problem:
        link.close()
        if damaged(problem):
            raise UnreadableHistory("it is damaged") from problem
        raise
    return link


def damaged(problem: BaseException) -> bool:
    """Whether an error means damaged content, not a failing disk."""
    return isinstance(problem, sqlite3.DatabaseError) and not isinstance(
        problem, (sqlite3.OperationalError, sqlite3.ProgrammingError)
    )


@contextlib.contextmanager
def transaction(link: sqlite3.Connection) -> Iterator[None]:
    """Commit everything, or nothing."""
    link.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            link.execute("ROLLBACK")
        raise
    link.execute("COMMIT")


def write(link: sqlite3.Connection, rows: Iterable[HistoryRow]) -> None:
    """Add rows; one for an existing minute, as after a clock was set back, replaces it."""
    with transaction(link):
        for row in rows:
            marks = ", ".join("?" * len(COLUMNS[type(row)]))
            table = TABLES[type(row)]
            link.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", astuple(row))


def prune(link: sqlite3.Connection, now: float, days: int) -> None:
    """Delete rows older than `days`, and marks beyond MAX_MARKS."""
    with transaction(link):
        for table in TABLES.values():
            link.execute(f"DELETE FROM {table} WHERE at < ?", (now - days * DAY_S,))
        last = "SELECT rowid FROM marks ORDER BY rowid DESC LIMIT 1 OFFSET ?"
        link.execute(f"DELETE FROM marks WHERE rowid <= ({last})", (MAX_MARKS,))


def set_aside(path: Path) -> None:
    """Rename an unusable file, replacing one that was set aside before; raises OSError."""
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    state_file.move(path, path.with_name(path.name + state_file.UNREADABLE_SUFFIX))


def read(path: Path, slot: str, since: int, until: int, points: int) -> dict[str, Any]:
    """The history of a slot and of the cards, in at most about `points` steps; sqlite3.Error.

    A step is a whole number of minutes, long enough for the answer to fit a frame; for the same
    reason the earliest of many marks are left out, and counted.
    """
    nothing = {
        "step_s": MINUTE_S, "at": [], "figures": {}, "cards": {}, "marks": [], "marks_left_out": 0,
    }  # fmt: skip
    if not path.is_file():
        return nothing
    link = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=BUSY_S)
    with contextlib.closing(link):
        if link.execute("PRAGMA user_version").fetchone()[0] == 0:
            return nothing  # another process is creating it at this moment
        # One transaction, so that all queries read the same rows.
        link.execute("BEGIN")
        query = "SELECT DISTINCT gpu FROM cards WHERE at >= ? AND at < ? ORDER BY gpu"
        cards = [gpu for (gpu,) in link.execute(query, (since, until))]
        values = 1 + len(SLOT_VALUES) + (1 + len(CARD_VALUES)) * len(cards)
        points = max(min(points, PIECE_VALUES // values), 1)
        step = MINUTE_S * max(-(-(until - since) // (MINUTE_S * points)), 1)
        window = (step, step, since, until)
        slot_query = _query("minutes", SLOT_VALUES, "slot")
        at, figures = _columns(link.execute(slot_query, (*window, slot)), SLOT_VALUES)
        by_card = {}
        for gpu in cards:
            rows = link.execute(_query("cards", CARD_VALUES, "gpu"), (*window, gpu))
            times, own = _columns(rows, CARD_VALUES)
            by_card[str(gpu)] = {"at": times, **own}
        which = "FROM marks WHERE at >= ? AND at < ? AND slot IN (?, '')"
        (count,) = link.execute(f"SELECT count(*) {which}", (since, until, slot)).fetchone()
        query = f"SELECT at, kind, text {which} ORDER BY at DESC LIMIT ?"
        marks = link.execute(query, (since, until, slot, LATEST_MARKS)).fetchall()
    return {
        "step_s": step,
        "at": at,
        "figures": figures,
        "cards": by_card,
        "marks": [{"at": a, "kind": kind, "text": text} for a, kind, text in reversed(marks)],
        "marks_left_out": count - len(marks),
    }


def _query(table: str, values: dict[str, str], key: str) -> str:
    return (
        f"SELECT at / ? * ? AS begin, {', '.join(values.values())} FROM {table}"
        f" WHERE at >= ? AND at < ? AND {key} = ? GROUP BY begin ORDER BY begin"
    )


def _columns(
    rows: Iterable[tuple[Any, ...]], names: Iterable[str]
) -> tuple[list[int], dict[str, list[float | None]]]:
    points = list(rows)
    columns = {
        name: [None if row[n] is None else float(f"{row[n]:.{DIGITS}g}") for row in points]
        for n, name in enumerate(names, 1)
    }
    return [row[0] for row in points], columns
