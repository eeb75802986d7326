"""A separate process for parsing untrusted text: an answer in time, or none."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caovand import HOME
from caovand.adapters.confinement import launch, parser_process
from caovand.adapters.system import processes
from tests.patience import eventually

WORK = """
import json, os, sys, time
def main():
    request, *lines = map(json.loads, sys.stdin.buffer)
    print(json.dumps([request, lines]), flush=True)
    exec(request["do"])
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "confined_work.py").write_text(WORK)
    (tmp_path / "caovand").symlink_to(Path(HOME) / "caovand")
    monkeypatch.setattr(parser_process, "HOME", str(tmp_path))
    return "confined_work"


def ask(work: str, do: str, limit_s: float = 60.0) -> tuple[list[Any], str]:
    return parser_process.ask(work, {"do": do}, ["one\n", "\ud800", "中"], limit_s)


@pytest.mark.skipif(launch.landlock_abi() < launch.MIN_ABI, reason="no Landlock")
def test_the_text_makes_its_reader_open_no_file(work: str, tmp_path: Path) -> None:
    attempts = f"for mode in 'rw':\n try: print(open('{tmp_path}/file', mode))\n"
    (tmp_path / "file").touch()
    answers, why = ask(work, f"{attempts} except PermissionError: print('[\"no\"]')")
    assert (answers[1:], why) == ([["no"]] * 2, "")


def test_what_is_asked_comes_back(work: str) -> None:
    answers, why = ask(work, "")
    assert (answers, why) == ([[{"do": ""}, ["one\n", "\ud800", "中"]]], "")


@pytest.mark.parametrize(
    ("do", "limit_s", "why"),
    [
        ("time.sleep(600)", 3.0, "the parser took too long"),
        ("while True: pass", 3.0, "the parser took too long"),
        ("bytearray(4 << 30)", 60.0, "exit status 1"),
        ("os.abort()", 60.0, "exit status -6"),
        ("print('1234567\\\\n' * 1000)", 60.0, "the answer was too long"),
        ("print('[1, 2', end='')", 60.0, ""),
    ],
)
def test_what_came_before_it_went_wrong_counts(
    work: str, monkeypatch: pytest.MonkeyPatch, do: str, limit_s: float, why: str
) -> None:
    monkeypatch.setattr(parser_process, "ANSWER_BYTES", 4000)
    before = children()  # other tests of this process may have servers of forks
    answers, told = ask(work, do.replace("\\\\n", "\\n"), limit_s)
    assert told == why
    assert answers[0][1] == ["one\n", "\ud800", "中"]
    assert children() <= before


def children() -> set[int]:
    """Processes that this one has started and that still run."""
    found = (one for one in processes.all_processes() if one.parent == os.getpid())
    return {one.pid for one in found if not one.zombie}


def test_the_time_that_other_programs_take_is_not_the_parsers(work: str) -> None:
    answers, why = parser_process.ask(work, {"do": "time.sleep(3)"}, [], 600.0, 1.0)
    assert (len(answers), why) == (1, "")
    answers, why = parser_process.ask(work, {"do": "while True: pass"}, [], 600.0, 1.0)
    assert (len(answers), why) == (1, "the parser took too long")


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_there_is_no_answer_and_no_fault(work: str) -> None:
    with no_descriptors():
        answers, why = ask(work, "")
    assert answers == []
    assert why == f"cannot start a process: {os.strerror(errno.EMFILE)}"


def test_without_processes_there_is_no_answer_and_no_fault(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert ask(work, "") == ([], f"cannot start a process: {os.strerror(errno.EAGAIN)}")


def test_neither_folder_nor_environment_says_what_is_imported(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    for name in ("json", "resource", "confined_work", "sitecustomize", "ctypes"):
        (trap / f"{name}.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(trap)
    monkeypatch.setenv("PYTHONPATH", str(trap))
    monkeypatch.setenv("PYTHONSTARTUP", str(trap / "json.py"))
    assert ask(work, "")[1] == ""


def test_it_does_not_outlive_who_asks(work: str, tmp_path: Path) -> None:
    seen = tmp_path / "pid"
    # While it is imported it may still write.
    begin = f"import os\nopen({str(seen)!r}, 'w').write(str(os.getpid()))"
    (tmp_path / "confined_work.py").write_text(f"{begin}{WORK}")
    program = (
        "from caovand.adapters.confinement import parser_process\n"
        f"parser_process.HOME = {str(tmp_path)!r}\n"
        "parser_process.ask('confined_work', {'do': 'time.sleep(600)'}, [], 600)"
    )
    root = str(Path(__file__).parents[2])
    with subprocess.Popen([sys.executable, "-c", program], env={"PYTHONPATH": root}) as asking:
        eventually(lambda: seen.exists() and seen.read_text())
        asking.kill()
    pid = int(seen.read_text())
    eventually(lambda: (found := processes.read(pid)) is None or found.zombie)


def test_the_time_of_a_process_ends_by_itself_too(work: str) -> None:
    """Should nobody be there to end it."""
    began = time.monotonic()
    answers, _ = ask(work, "import resource; print(resource.getrlimit(resource.RLIMIT_CPU)[1])")
    assert answers[1] == 61
    assert time.monotonic() - began < 60
