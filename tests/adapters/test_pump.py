"""The engine's output: every line once, secrets removed, and the engine never blocked."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.adapters.engine import pump
from caovand.adapters.engine.pump import MAX_LINE, RING_BYTES, LogSinks, Pump, Ring, RotatedFile
from tests.daemon_process import ROOT
from tests.patience import PATIENCE_S, eventually


def kept(ring: Ring) -> list[str]:
    """All lines that a ring has."""
    return ring.since(0, 1 << 40)[0]


class Pipe:
    """A pump with its writing end; `finish` gives the lines it took."""

    def __init__(self, folder: Path, ring: int = 100_000, **more: Sequence[str]) -> None:
        self.lines: list[str] = []
        self.ring, self.file = Ring(ring), RotatedFile(folder / "engine.log")
        read_end, self.descriptor = os.pipe()
        self.pump = Pump(read_end, LogSinks(self.ring, self.file, self.take, **more))

    def take(self, lines: Sequence[str]) -> None:
        self.lines.extend(lines)

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.descriptor, data) :]

    def finish(self) -> list[str]:
        os.close(self.descriptor)
        assert self.pump.join(30)
        return self.lines


@pytest.fixture
def pipe(tmp_path: Path) -> Pipe:
    return Pipe(tmp_path)


def lines_of(folder: Path) -> list[str]:
    return (folder / "engine.log").read_text(encoding="utf-8").splitlines()


# -- lines ---


def test_hidden_lines_are_in_the_file_and_nowhere_else(tmp_path: Path) -> None:
    pipe = Pipe(tmp_path)
    pipe.ring.hides = lambda line: "GET /health" in line
    pipe.write(b"one\nGET /health 200\ntwo\n")
    assert pipe.finish() == kept(pipe.ring) == ["one", "two"]
    assert pipe.ring.count == 2, "readers and the ring number lines alike"
    assert lines_of(tmp_path) == ["one", "GET /health 200", "two"]


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb", ["a", "b"]),
        (b"10%\r50%\r100%\ndone\n", ["10%", "50%", "100%", "done"]),
        (b"\n\n\r\r\n", []),
        (b"", []),
        (b"no newline at the end", ["no newline at the end"]),
        (b"\x1b[1;36m(APIServer pid=7)\x1b[0;0m INFO\n", ["(APIServer pid=7) INFO"]),
        (b"\x1b]0;a title\x07text\x1b]8;;http://x\x1b\\link\n", ["textlink"]),
        (b"\x1b[?25l\x1b[2K\x1b(x\n", ["(x"]),
        (b"a stray \x1b\n", ["a stray "]),
        (b"\xff\xfe\n", ["\ufffd\ufffd"]),
        (b"tail \xe2\x82", ["tail \ufffd"]),
        ("Grüße 你好\n".encode(), ["Grüße 你好"]),
    ],
)
def test_output_becomes_lines(pipe: Pipe, written: bytes, lines: list[str]) -> None:
    pipe.write(written)
    assert pipe.finish() == lines
    assert kept(pipe.ring) == lines


@given(st.lists(st.text("aé你\U0001f600 -", min_size=1), min_size=1), st.randoms())
def test_lines_come_out_whole_however_they_were_cut(texts: list[str], draw: random.Random) -> None:
    """Read in any portions: characters, colour codes and line ends may be split between two."""
    taken: list[str] = []
    sink = Pump.__new__(Pump)
    written = "\r\n".join(f"\x1b[1;31m{text}\x1b[0m" for text in texts)
    random_cuts = sorted(draw.randrange(len(written)) for _ in range(5))
    sink._secrets, sink._keep, sink._rest, sink._faulty = (), 0, "", False
    sink._sinks = LogSinks(Ring(10), RotatedFile(Path("/dev/null")), taken.extend)
    bounds = [0, *random_cuts, len(written)]
    for start, end in itertools.pairwise(bounds):
        sink._take(sink._rest + written[start:end])
    sink._take(sink._rest + "\n")
    assert taken == texts


def test_a_character_split_between_two_reads_stays_whole(pipe: Pipe) -> None:
    first, second = "é\n".encode()[:1], "é\n".encode()[1:]
    pipe.write(b"x" * 10 + first)
    eventually(lambda: pipe.pump._rest)
    pipe.write(second)
    assert pipe.finish() == ["x" * 10 + "é"]


def test_a_line_without_end_is_cut_and_nothing_of_it_is_lost(pipe: Pipe) -> None:
    pipe.write(b"x" * 300_000 + b"\nnext\n")
    *pieces, last = pipe.finish()
    assert last == "next"
    assert "".join(pieces) == "x" * 300_000
    assert max(map(len, pieces)) <= MAX_LINE


def test_a_million_bytes_a_second_lose_no_line(pipe: Pipe, tmp_path: Path) -> None:
    whole = [f"INFO 11-20 10:00:00 [loggers.py:259] line {n} of many" for n in range(60_000)]
    pipe.write(("\n".join(whole) + "\n").encode())
    assert pipe.finish() == whole
    assert pipe.ring.count == len(whole)
    assert pipe.file.flush(30)
    assert lines_of(tmp_path) == whole
    assert pipe.file.lost_bytes == 0


# -- secrets ---


def test_secrets_never_leave_the_pump(tmp_path: Path) -> None:
    pipe = Pipe(tmp_path, secrets=["sk-12345", ""])
    pipe.write(b"key sk-12345 and sk-\x1b[1m12345\nsk-12")
    pipe.write(b"345\n")
    assert pipe.finish() == ["key [secret] and [secret]", "[secret]"]
    assert pipe.file.flush(30)
    assert "12345" not in (tmp_path / "engine.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("before", range(MAX_LINE - 10, MAX_LINE + 3))
def test_a_secret_where_a_long_line_is_cut_is_found_too(tmp_path: Path, before: int) -> None:
    pipe = Pipe(tmp_path, secrets=["sk-12345"])
    pipe.write(b"x" * before + b"sk-")
    eventually(lambda: pipe.pump._rest)
    pipe.write(b"12345" + b"y" * 100 + b"\n")
    assert "".join(pipe.finish()) == "x" * before + "[secret]" + "y" * 100


# -- the engine is never held up ---


def fills(pipe: Pipe) -> None:
    """Write far more than pipe and queue hold, from a thread that would be left hanging."""
    block = (b"x" * 99 + b"\n") * 10_000
    writer = threading.Thread(target=pipe.write, args=(block * 25,), daemon=True)
    writer.start()
    writer.join(60)
    assert not writer.is_alive(), "the engine was held up"


def test_a_disk_that_hangs_costs_file_lines_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "engine.log")  # opening it hangs until somebody reads
    pipe = Pipe(tmp_path)
    fills(pipe)
    eventually(lambda: pipe.ring.count == 250_000)
    assert pipe.file.lost_bytes > 10 << 20
    assert kept(pipe.ring)[-1:] == ["x" * 99]
    # Somebody reads at last: what waited is written.
    with open(tmp_path / "engine.log", "rb", buffering=0) as reader:
        os.set_blocking(reader.fileno(), False)
        written = b""
        while not pipe.file.flush(0):
            written += reader.read(1 << 16) or b""
    assert written.startswith(b"x" * 99 + b"\n")
    pipe.finish()


FLOOD = """
import os, sys, threading
from pathlib import Path
from caovand.adapters.engine.pump import LogSinks, Pump, Ring, RotatedFile

def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

read_end, write_end = os.pipe()
file = RotatedFile(Path(sys.argv[1]))
before = peak()
pump = Pump(read_end, LogSinks(Ring(100_000), file, lambda lines: None, ["a-secret"]))
block = eval(sys.argv[2])
for _ in range((128 << 20) // len(block)):
    os.write(write_end, block)
os.close(write_end)
pump.join()
print(peak() - before, file.lost_bytes)
"""


@pytest.mark.parametrize(
    "block",
    [
        pytest.param("bytes(65536)", marks=pytest.mark.long, id="NUL bytes"),
        pytest.param("'\U0001f600'.encode() * 16384", id="wide characters"),
        pytest.param(r"b'\n' * 65536", id="empty lines"),
        pytest.param(r"(b'x' * 31 + b'\n') * 2048", marks=pytest.mark.long, id="short lines"),
    ],
)
def test_no_flood_fills_the_memory(tmp_path: Path, block: str) -> None:
    """Behind a disk that hangs, which keeps as much as is ever kept."""
    os.mkfifo(tmp_path / "engine.log")
    done = subprocess.run(
        [sys.executable, "-c", FLOOD, str(tmp_path / "engine.log"), block],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
    )
    grown_kib, lost = map(int, done.stdout.split())
    assert grown_kib < 64 << 10
    if "x" in block:
        assert lost > 32 << 20


def test_one_can_wait_for_what_is_in_the_pipe_while_somebody_holds_it(tmp_path: Path) -> None:
    held, taken = threading.Event(), list[str]()

    def late(lines: Sequence[str]) -> None:
        assert held.wait(PATIENCE_S)
        taken.extend(lines)

    ring, read_end, write_end = Ring(10), *os.pipe()
    pumped = Pump(read_end, LogSinks(ring, RotatedFile(tmp_path / "engine.log"), late))
    assert pumped.catch_up(PATIENCE_S)
    os.write(write_end, b"one\n")
    eventually(lambda: ring.count == 1)
    os.write(write_end, b"two\n")
    assert not pumped.catch_up(0.01)
    held.set()
    assert pumped.catch_up(PATIENCE_S)
    assert taken == ["one", "two"]
    os.close(write_end)
    assert pumped.join(30)
    assert pumped.catch_up(PATIENCE_S)


def test_a_folder_that_is_gone_costs_file_lines_only(tmp_path: Path) -> None:
    pipe = Pipe(tmp_path / "nowhere")
    pipe.write(b"one\ntwo\n")
    assert pipe.finish() == ["one", "two"]
    assert pipe.file.flush(30)
    assert pipe.file.lost_bytes == len("one\ntwo\n")


def test_a_full_disk_costs_file_lines_only() -> None:
    ring, read_end, write_end = Ring(10), *os.pipe()
    file = RotatedFile(Path("/dev/full"))
    pumped = Pump(read_end, LogSinks(ring, file, lambda lines: None))
    os.write(write_end, b"one\n")
    os.close(write_end)
    assert pumped.join(30)
    assert file.flush(30)
    assert (kept(ring), file.lost_bytes) == (["one"], 4)


def test_a_fault_in_the_callback_is_told_once_and_stops_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ring, read_end, write_end = Ring(10), *os.pipe()

    def faulty(lines: Sequence[str]) -> None:
        raise OSError("our fault")

    pumped = Pump(read_end, LogSinks(ring, RotatedFile(tmp_path / "engine.log"), faulty))
    os.write(write_end, b"one\n")
    eventually(lambda: ring.count == 1)
    os.write(write_end, b"two\n")
    os.close(write_end)
    assert pumped.join(30)
    assert kept(ring) == ["one", "two"]
    assert capfd.readouterr().err.count("OSError: our fault") == 1


# -- the rotated file ---


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_files_never_grow_beyond_their_limit_and_only_so_many_are_kept(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "engine.log", limit=1000, backups=2)
    for n in range(100):
        file.write(f"{n:09d}\n".encode() * (n % 7 + 1))
        assert file.flush(30)
        assert max(sizes(tmp_path).values()) <= 1000
    assert set(sizes(tmp_path)) == {"engine.log", "engine.log.1", "engine.log.2"}
    kept = [(tmp_path / f"engine.log{end}").read_text() for end in (".2", ".1", "")]
    numbers = [int(line) for text in kept for line in text.split()]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 99
    assert file.lost_bytes == 0


def test_a_next_daemon_appends_to_what_is_there(tmp_path: Path) -> None:
    for text in (b"one\n", b"two\n"):
        file = RotatedFile(tmp_path / "engine.log")
        file.write(text)
        assert file.flush(30)
    assert sizes(tmp_path) == {"engine.log": 8}


def test_the_log_is_not_for_everybody(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "engine.log")
    file.write(b"a prompt\n")
    assert file.flush(30)
    assert (tmp_path / "engine.log").stat().st_mode & 0o137 == 0


def test_a_write_larger_than_the_limit_is_written_whole(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "engine.log", limit=10, backups=1)
    for text in (b"a" * 30, b"b" * 30):
        file.write(text)
    assert file.flush(30)
    assert sizes(tmp_path) == {"engine.log": 30, "engine.log.1": 30}


# -- the ring ---


def test_a_ring_keeps_fewer_lines_where_they_are_long() -> None:
    ring = Ring(10_000)
    ring.extend(["short"] * 9_000)
    for n in range(2_000):
        ring.extend([f"{n:06d}" + "\U0001f600" * (MAX_LINE - 6)])
    lines = kept(ring)
    assert sum(map(sys.getsizeof, lines)) <= RING_BYTES
    assert len(lines) > 200
    assert ring.count == 11_000
    numbers, last = ring.since(10_990, 1 << 30)
    assert ([int(line[:6]) for line in numbers], last) == (list(range(1990, 2000)), 11_000)


@pytest.fixture
def ring() -> Ring:
    ring = Ring(3)
    ring.extend(["1", "2", "3", "4", "5"])
    return ring


@pytest.mark.parametrize(
    ("since", "lines"),
    [(0, ["3", "4", "5"]), (3, ["4", "5"]), (4, ["5"]), (5, []), (6, ["3", "4", "5"])],
)
def test_a_ring_tells_what_is_new(ring: Ring, since: int, lines: list[str]) -> None:
    """A number that was not reached yet is one of an earlier daemon."""
    assert ring.since(since, 1000) == (lines, 5)


@given(st.lists(st.text(max_size=30), max_size=20), st.integers(12, 200))
def test_who_asks_again_gets_every_line_in_the_end(texts: list[str], most_bytes: int) -> None:
    ring = Ring(100)
    ring.extend(texts)
    number, seen = 0, 0
    while number < ring.count:
        lines, number = ring.since(number, most_bytes)
        assert lines
        seen += len(lines)
    assert seen == len(texts)


def test_a_line_longer_than_a_frame_is_cut_and_holds_nobody_up() -> None:
    ring = Ring(10)
    ring.extend(["\x01" * pump.MAX_LINE, "next"])
    (line,), number = ring.since(0, 6000)
    assert (len(line), number) == (1000, 1)
    assert ring.since(number, 6000) == (["next"], 2)
