"""Read the important lines of a log file of any size in one pass and bounded memory.

It keeps the end, the first lines of the last starts, and lines with an alarm word, each with the
lines around it. A file that is small enough is kept whole.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import BinaryIO

PIECE_BYTES = 1 << 18
MAX_END_BYTES = 4 << 20
MAX_END_LINES = 30_000
MAX_LINE_BYTES = 1 << 16
MAX_STARTS, START_LINES, MAX_HEAD_BYTES = 4, 1500, 1 << 18
SAME_START = 300  # lines: a start has several first lines
MAX_ALARM_BYTES = 1 << 20
BEFORE, AFTER = 60, 10  # lines around an alarm: a traceback's frames precede it
ALARMS = (
    b"ERROR", b"CRITICAL", b"rror:", b"raceback", b"xception", b"atal", b"Failed", b"failed ",
    b"NVRM", b"Killed process", b"ASSERT", b"abort", b"panic", b"unable to", b"out of memory",
    b"hutdown", b"startup complete",
)  # fmt: skip
"""Words that almost every failure, and every end of a start or of an engine, logs."""


@dataclass(frozen=True)
class Excerpt:
    """Kept lines, each with its line number in the file (from 1), and how many were left out."""

    text: str
    numbers: Sequence[int]
    left_out: int

    def number(self, line: int) -> int:
        """Line number in the file of a line of the excerpt; both count from 1."""
        return self.numbers[line - 1] if 0 < line <= len(self.numbers) else line


@dataclass(frozen=True)
class _Piece:
    """Whole lines; `first` is the line number of the first."""

    first: int
    raw: bytes
    lines: int


def excerpt_of(log: BinaryIO, starts: Sequence[str]) -> Excerpt:
    """The important lines of a log; `starts` are texts that the first lines of a start contain."""
    end: deque[_Piece] = deque()
    sieve = _Sieve([text.encode() for text in starts])
    size = lines = 0
    for piece in _pieces(log):
        end.append(piece)
        size += len(piece.raw)
        lines += piece.lines
        while len(end) > 1 and (size > MAX_END_BYTES or lines > MAX_END_LINES):
            old = end.popleft()
            size -= len(old.raw)
            lines -= old.lines
            sieve.sift(old)
    return _join(sieve, end)


def _join(sieve: _Sieve, end: Sequence[_Piece]) -> Excerpt:
    kept = sieve.kept()
    texts, numbers = list(kept.values()), array("q", kept)
    for piece in end:
        texts.append(piece.raw)
        numbers.extend(range(piece.first, piece.first + piece.lines))
    total = end[-1].first + end[-1].lines - 1 if end else 0
    text = b"".join(texts).decode("utf-8", errors="replace")
    return Excerpt(text, numbers, total - len(numbers))


def _pieces(log: BinaryIO) -> Iterator[_Piece]:
    """The log in pieces of whole lines; of an endless line the beginning and the end are kept."""
    number, rest = 1, b""
    while raw := log.read(PIECE_BYTES):
        whole, newline, part = raw.rpartition(b"\n")
        if newline:
            raw = _shorten(rest) + whole + newline
            lines = raw.count(b"\n")
            yield _Piece(number, raw, lines)
            number, rest = number + lines, part
        else:
            rest = _shorten(rest + part)
    if rest:
        yield _Piece(number, _shorten(rest), 1)


def _shorten(line: bytes) -> bytes:
    half = MAX_LINE_BYTES // 2
    return line if len(line) <= MAX_LINE_BYTES else line[:half] + line[-half:]


class _Sieve:
    """Keeps the important lines of earlier pieces."""

    def __init__(self, starts: Sequence[bytes]) -> None:
        self._starts = starts
        self._heads: deque[dict[int, bytes]] = deque(maxlen=MAX_STARTS)
        self._head_end = self._alarm_end = 0  # the first lines after these are dropped
        self._head_bytes = self._alarm_bytes = 0
        self._alarms: deque[tuple[int, bytes]] = deque()

    def sift(self, piece: _Piece) -> None:
        """Keep the important lines of the log's next piece."""
        starts, alarms = _places(piece.raw, self._starts), _places(piece.raw, ALARMS)
        if not starts and not alarms and piece.first >= max(self._head_end, self._alarm_end):
            return
        lines = [line + b"\n" for line in piece.raw.split(b"\n")[: piece.lines]]
        ends = list(accumulate(map(len, lines)))
        begun = {piece.first + bisect_right(ends, at) for at in starts}
        alarmed = {piece.first + bisect_right(ends, at) for at in alarms}
        for number, line in enumerate(lines, piece.first):
            if number in begun and number >= self._head_end - START_LINES + SAME_START:
                self._heads.append({})
                self._head_end, self._head_bytes = number + START_LINES, 0
            if number < self._head_end and self._head_bytes < MAX_HEAD_BYTES:
                self._heads[-1][number] = line
                self._head_bytes += len(line)
            if number in alarmed:
                before = max(number - BEFORE, self._alarm_end, piece.first)
                for earlier in range(before, number):
                    self._keep(earlier, lines[earlier - piece.first])
                self._alarm_end = number + 1 + AFTER
            if number < self._alarm_end:
                self._keep(number, line)

    def _keep(self, number: int, line: bytes) -> None:
        self._alarms.append((number, line))
        self._alarm_bytes += len(line)
        while self._alarm_bytes > MAX_ALARM_BYTES:
            self._alarm_bytes -= len(self._alarms.popleft()[1])

    def kept(self) -> dict[int, bytes]:
        """The lines kept, by number, in order."""
        lines = dict(self._alarms)
        for head in self._heads:
            lines.update(head)
        return dict(sorted(lines.items()))


def _places(raw: bytes, words: Sequence[bytes]) -> list[int]:
    """Positions in lines that contain one of these words, at most one per word and line."""
    positions = []
    for word in words:
        at = raw.find(word)
        while at >= 0:
            positions.append(at)
            line_end = raw.find(b"\n", at)
            at = raw.find(word, line_end) if line_end >= 0 else -1
    return positions
