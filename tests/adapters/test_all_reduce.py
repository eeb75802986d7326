"""The all-reduce check: its processes, its verdicts, and its stored results."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.gpu import all_reduce, all_reduce_in_env
from caovand.core.facts.all_reduce import AllReduce, AllReduceResult
from tests.daemon_process import lives
from tests.patience import eventually

STEP = {"by": "NCCL", "step": "float16 x 512"}
RIGHT = {**STEP, "done": True, "wrong": 0, "of": 1536}


def right(task: dict[str, Any], rank: int, place: str, tell: Callable[..., None]) -> None:
    tell(ready=True, skipped="")
    tell(**STEP)
    tell(**RIGHT)
    tell(over=True)


def without_own(task: dict[str, Any], rank: int, place: str, tell: Callable[..., None]) -> None:
    tell(ready=True, skipped="ImportError: vllm")
    tell(over=True)


def wrong(task: dict[str, Any], rank: int, place: str, tell: Callable[..., None]) -> None:
    tell(ready=True, skipped="")
    tell(**{**RIGHT, "wrong": 3 * rank})
    if rank == 0:
        signal.pause()  # a rank that waits for others does not hide what one has found


def hangs(task: dict[str, Any], rank: int, place: str, tell: Callable[..., None]) -> None:
    Path(task["pids"], str(os.getpid())).touch()
    if os.fork() == 0:
        Path(task["pids"], str(os.getpid())).touch()
    tell(ready=True, skipped="")
    tell(**STEP)
    signal.pause()


def never_ready(task: dict[str, Any], rank: int, place: str, tell: Callable[..., None]) -> None:
    signal.pause()


def fails(task: dict[str, Any], rank: int, place: str, tell: Callable[..., None]) -> None:
    tell(ready=True, skipped="")
    if rank == 1:
        raise RuntimeError("out of memory")
    signal.pause()


def dies(task: dict[str, Any], rank: int, place: str, tell: Callable[..., None]) -> None:
    tell(ready=True, skipped="")
    tell(**STEP)
    if rank == 1:
        os.write(2, b"node7: NCCL WARN\nfree(): invalid pointer\n")
        os._exit(3)
    signal.pause()


def is_killed(task: dict[str, Any], rank: int, place: str, tell: Callable[..., None]) -> None:
    if rank == 0:
        if os.fork() == 0:  # it holds the pipe
            Path(task["pids"], str(os.getpid())).touch()
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


@pytest.mark.parametrize(
    ("work", "verdict", "by", "text"),
    [
        (right, "right", "", ""),
        (
            without_own,
            "right",
            "",
            "the engine's own all-reduce could not be checked: ImportError: vllm",
        ),
        (wrong, "wrong", "NCCL", "3 of 1536 sums of float16 x 512 on rank 1"),
        (hangs, "hung", "NCCL", "no answer to float16 x 512"),
        (never_ready, "unclear", "", "not ready in time"),
        (fails, "unclear", "", "rank 1: RuntimeError: out of memory"),
        (dies, "unclear", "", "rank 1 exited early (exit status 3): free(): invalid pointer"),
        (is_killed, "unclear", "", "rank 0 exited early (killed by signal 9)"),
    ],
)
def test_every_end_of_the_ranks_is_a_verdict_and_leaves_no_process(
    work: Any, verdict: str, by: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_reduce_in_env, "check_all_reduce", work)
    short = work in (hangs, never_ready)
    task = {"ranks": 2, "pids": str(tmp_path), "ready_s": 1.0 if work is never_ready else 60.0,
            "check_s": 1.0 if short else 60.0}  # fmt: skip
    answer = all_reduce_in_env.main(task)
    assert (answer["verdict"], answer["by"], answer["text"]) == (verdict, by, text)
    for pid in map(int, os.listdir(tmp_path)):
        eventually(lambda pid=pid: not lives(pid))  # type: ignore[misc]


def fake_python(folder: Path, script: str) -> str:
    """A Python that does this instead of what it is given."""
    place = folder / "python"
    place.write_text(f"#!{sys.executable}\nimport json, sys\n{script}\n")
    place.chmod(0o755)
    return str(place)


TASK = AllReduce(2, "custom = None", {})


@pytest.mark.parametrize(
    ("script", "verdict", "text"),
    [
        ("print('noise'); print(json.dumps({'verdict': 'wrong', 'by': 'NCCL', 'text': 'x'}))",
         "wrong", "x"),
        ("sys.exit('No module named torch')", "unclear", "No module named torch"),
        ("print('{')", "unclear", "it printed nothing"),
        ("print('[]')", "unclear", "it printed nothing"),
        ("print(json.dumps({'verdict': 'perhaps'}))", "unclear", "it printed nothing"),
        ("assert json.loads(sys.argv[3])['ranks'] == 2; assert 'check_all_reduce' in sys.argv[2];"
         "sys.exit('as asked')", "unclear", "as asked"),
        ("import os; sys.exit(os.environ['OMP_NUM_THREADS'] + ' thread')", "unclear", "1 thread"),
    ],
)  # fmt: skip
def test_an_answer_is_read_whatever_it_is(
    script: str, verdict: str, text: str, tmp_path: Path
) -> None:
    found = all_reduce.finish(
        all_reduce.start(fake_python(tmp_path, script), TASK, dict(os.environ))
    )
    assert (found.verdict, found.text) == (verdict, text)


def test_one_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READY_S", "CHECK_S", "MORE_S"):
        monkeypatch.setattr(all_reduce, name, 0.3)
    python = fake_python(tmp_path, "import time; time.sleep(600)")
    assert (
        all_reduce.finish(all_reduce.start(python, TASK, dict(os.environ))).text
        == "the check did not finish"
    )


def test_what_was_found_is_kept_and_bounded(tmp_path: Path) -> None:
    assert all_reduce.read_result(tmp_path, "k") is None
    for number in range(20):
        all_reduce.save_result(
            tmp_path / "new", f"k{number}", AllReduceResult("right", float(number))
        )
    assert all_reduce.read_result(tmp_path / "new", "k19") == AllReduceResult("right", 19.0)
    assert all_reduce.read_result(tmp_path / "new", "k3") is None
    assert len(json.loads((tmp_path / "new" / all_reduce.FILE).read_text())) == 16


@pytest.mark.parametrize(
    "broken", ["{", "[]", '{"k": 1}', '{"k": {"verdict": "right", "at": "x"}}', '{"k": {}}']
)
def test_a_broken_file_is_no_answer(tmp_path: Path, broken: str) -> None:
    (tmp_path / all_reduce.FILE).write_text(broken)
    assert all_reduce.read_result(tmp_path, "k") is None
    all_reduce.save_result(tmp_path, "k", AllReduceResult("right", 1.0))
    assert all_reduce.read_result(tmp_path, "k") == AllReduceResult("right", 1.0)
