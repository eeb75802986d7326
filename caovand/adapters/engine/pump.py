"""Read the engine's output without ever blocking the engine.

One thread reads the pipe. Lines (split at newlines and carriage returns, colour codes removed) go
to a bounded ring, to a rotated file and to one callback. Another thread writes the file: if the
disk is full or hangs, lines of the file are lost and counted, and nothing else suffers.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import json
import os
import re
import select
import sys
import termios
import threading
import traceback
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from caovand.adapters.files import safe_files
from caovand.core.problem import reason_of
from caovand.core.secrets import HIDDEN, escaped_forms

READ_BYTES = 1 << 16
PIPE_BYTES = 1 << 20
MAX_LINE = 1 << 14
BEHIND_BYTES = 8 << 20
RING_BYTES = 16 << 20
PIECE_BYTES = 64  # memory of a queued piece of output, without its text
F_SETPIPE_SZ = 1031

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_ENDS = re.compile(r"[\r\n]+")


class Ring:
    """The latest `size` lines, numbered from 1; safe between the pump's thread and readers.

    Long lines reduce their number: memory is bounded too. Lines that it `hides` are in the file
    only.
    """

    def __init__(self, size: int, hides: Callable[[str], bool] = lambda line: False) -> None:
        self.hides = hides
        self._lines: deque[str] = deque(maxlen=size)
        self._size = size
        self._lock = threading.Lock()
        self._count = self._bytes = 0

    def extend(self, lines: Sequence[str]) -> None:
        """Append lines; the oldest are dropped."""
        with self._lock:
            kept = lines[-self._size :]
            falls_out = islice(self._lines, max(len(self._lines) + len(kept) - self._size, 0))
            self._bytes += sum(map(sys.getsizeof, kept)) - sum(map(sys.getsizeof, falls_out))
            self._lines.extend(kept)
            while self._bytes > RING_BYTES:
                self._bytes -= sys.getsizeof(self._lines.popleft())
            self._count += len(lines)

    def since(self, number: int, max_bytes: int) -> tuple[list[str], int]:
        """Lines after line `number`, up to `max_bytes` as JSON, and the number of the last.

        Returns at least one line if any exist, truncated if necessary, so that a polling client
        makes progress. A number not reached yet comes from an earlier daemon: then every line is
        new.
        """
        with self._lock:
            first = self._count - len(self._lines)
            if number > self._count:
                number = first
            rest = list(self._lines)[max(number - first, 0) :]
            last = max(number, first)
        lines: list[str] = []
        for line in rest:
            size = len(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace")) + 1
            if size > max_bytes:
                if not lines:
                    lines.append(line[: max_bytes // 6])  # "\u0000" is the longest escape
                break
            max_bytes -= size
            lines.append(line)
        return lines, last + len(lines)

    @property
    def count(self) -> int:
        """The number of the latest line."""
        return self._count


class RotatedFile:
    """An append-only log file that keeps `backups` older ones of at most `limit` bytes each.

    A separate thread writes it, at most `BEHIND_BYTES` late; `lost_bytes` counts bytes that were
    not written.
    """

    def __init__(self, path: Path, limit: int = 16 << 20, backups: int = 4) -> None:
        self.path, self._limit, self._backups = path, limit, backups
        self._file: int | None = None
        self._size = 0
        self._turn = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._behind = 0
        self._writer: threading.Thread | None = None
        self.lost_bytes = 0
        self.problem = ""
        """Why the latest write failed; "" if it succeeded."""

    def write(self, data: bytes) -> None:
        """Queue `data` to be appended; never waits."""
        cost = len(data) + PIECE_BYTES
        with self._turn:
            if self._behind + cost > BEHIND_BYTES:
                self.lost_bytes += len(data)
                return
            self._waiting.append(data)
            self._behind += cost
            if self._writer is None:
                writer = threading.Thread(target=self._run, name="log-file", daemon=True)
                # No thread available: the queue is written once one can be started.
                with contextlib.suppress(RuntimeError):
                    writer.start()
                    self._writer = writer
            self._turn.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued is written or lost; return whether that succeeded."""
        with self._turn:
            return self._turn.wait_for(lambda: not self._behind, timeout_s)

    def _run(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._waiting)
                data = self._waiting.popleft()
            lost = len(data) - self._append(data)
            with self._turn:
                self.lost_bytes += lost
                self._behind -= len(data) + PIECE_BYTES
                self._turn.notify_all()

    def _append(self, data: bytes) -> int:
        """Write `data`; returns how many of its bytes were written."""
        written = 0
        try:
            if self._file is None or self._size + len(data) > self._limit:
                self._open(len(data))
            assert self._file is not None
            while written < len(data):
                written += os.write(self._file, data[written:])
            self.problem = ""
        except OSError as problem:
            self.problem = reason_of(problem)
        self._size += written
        return written

    def _open(self, size: int) -> None:
        """Open the file, rotating it first if `size` more bytes would exceed its limit."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self.path.exists() and self.path.stat().st_size + size > self._limit:
            for number in range(self._backups, 0, -1):
                newer = self.path if number == 1 else self._numbered_path(number - 1)
                with contextlib.suppress(FileNotFoundError):
                    os.replace(newer, self._numbered_path(number))
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = safe_files.open_own(self.path, flags, 0o640, any_kind=True)
        self._size = os.fstat(self._file).st_size

    def _numbered_path(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


@dataclass(frozen=True)
class LogSinks:
    """The destination of an engine's output, without `secrets`; the pump's thread calls
    `on_lines`.
    """

    ring: Ring
    file: RotatedFile
    on_lines: Callable[[Sequence[str]], None]
    secrets: Sequence[str] = ()


class Pump:
    """Reads `descriptor` to its end in its own thread."""

    def __init__(self, descriptor: int, sinks: LogSinks) -> None:
        self._descriptor, self._sinks = descriptor, sinks
        self._secrets = escaped_forms(sinks.secrets)
        # The end of an unfinished line may be the beginning of a secret.
        self._keep = max((len(secret) - 1 for secret in self._secrets), default=0)
        self._rest = ""
        self._faulty = self._over = False
        self._turn = threading.Condition()
        self._read = self._taken = 0  # bytes
        self._thread = threading.Thread(target=self._run, name="log-pump", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the pipe; return whether it was reached."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def catch_up(self, timeout_s: float) -> bool:
        """Wait until all lines now in the pipe are passed on; return whether they were."""
        with self._turn:
            if self._over:
                return True
            unread = array("i", [0])
            fcntl.ioctl(self._descriptor, termios.FIONREAD, unread)
            upto = self._read + unread[0]
            return self._turn.wait_for(lambda: self._over or self._taken >= upto, timeout_s)

    def _run(self) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        with contextlib.suppress(OSError):
            while chunk := self._chunk():
                self._take(self._rest + decode(chunk))
                with self._turn:
                    self._taken = self._read
                    self._turn.notify_all()
        self._take(self._rest + decode(b"", True) + "\n")
        with self._turn:
            os.close(self._descriptor)
            self._over = True
            self._turn.notify_all()
        self._sinks.file.flush(1.0)

    def _chunk(self) -> bytes:
        """The next output, b"" at its end; at any moment a byte is in the pipe or counted."""
        ready = select.poll()
        ready.register(self._descriptor, select.POLLIN)
        ready.poll()
        with self._turn:
            chunk = os.read(self._descriptor, READ_BYTES)
            self._read += len(chunk)
        return chunk

    def _take(self, text: str) -> None:
        if "\x1b" in text:
            text = _ANSI.sub("", text)
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        *lines, rest = _ENDS.split(text)
        if len(rest) > MAX_LINE + self._keep:
            cut = len(rest) - self._keep
            lines.append(rest[:cut])
            rest = rest[cut:]
        self._rest = rest
        self._give([piece for line in lines if line for piece in _pieces(line)])

    def _give(self, lines: Sequence[str]) -> None:
        if not lines:
            return
        self._sinks.file.write(("\n".join(lines) + "\n").encode("utf-8", "replace"))
        shown = [line for line in lines if not self._sinks.ring.hides(line)]
        self._sinks.ring.extend(shown)
        try:
            self._sinks.on_lines(shown)
        except Exception:
            # Our own bug must not stall the engine: it is reported once, and reading continues.
            if not self._faulty:
                traceback.print_exc()
            self._faulty = True


def _pieces(line: str) -> Sequence[str]:
    line = line.replace("\x1b", "")
    if len(line) <= MAX_LINE:
        return (line,)
    return [line[i : i + MAX_LINE] for i in range(0, len(line), MAX_LINE)]
