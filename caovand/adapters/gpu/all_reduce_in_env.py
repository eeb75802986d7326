"""Run by an engine's own Python: prints as one line of JSON whether all-reduce over its cards is
right.

    ENGINE/bin/python -I -c "$(cat all_reduce_in_env.py)" TASK

TASK is JSON: `ranks`, one process each; `backend`, "nccl" or "gloo"; `custom`, Python that binds
`custom` to an all-reduce of the engine's own, or to None if it would not be used; `ready_s` and
`check_s`, the seconds that starting and reducing may take. It sums small whole numbers, which every
type represents exactly, so that any difference from the sum on the host means wrong data.

The answer's "verdict" is "right", "wrong", "hung" or "unclear", `by` the implementation, `text` the
reason, and `checked` what was compared. It must not import anything of caovan. This process imports
nothing large and ends all others, whatever happens; each of those ends with this one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from typing import Any

TYPES = ("float16", "bfloat16", "float32", "int32")
ELEMENTS = (512, 1 << 16, 1 << 20, 1 << 22)
"""1 KiB to 16 MiB: sizes for each of NCCL's protocols and for peer-to-peer memory."""
ROUNDS = 3  # with other numbers each time, so that stale data is not mistaken for new
FAILURES = {"failed", "died"}
MAX_WORDS = 4096  # bytes
END_S = 5.0  # a process blocked in the driver may never end


# -- one process per card --------------------------------------------------------------------


def addends(torch: Any, rank: int, count: int, turn: int) -> Any:
    """The addends of a rank: for 16 ranks their sum is below 256, exact in bfloat16."""
    return (torch.arange(count, dtype=torch.int32) * 7 + rank * 5 + turn * 3) % 29 - 14


def check_all_reduce(task: dict[str, Any], rank: int, place: str, tell: Any) -> None:
    """Compare each all-reduce of this rank with the expected sum."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)  # else each rank computes on every core of the host
    dist = importlib.import_module("torch.distributed")
    ranks, backend = task["ranks"], task["backend"]
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)  # creates the context, which may take long
    where = f"file://{place}/meeting"
    dist.init_process_group(backend, init_method=where, rank=rank, world_size=ranks)
    group = dist.new_group(backend="gloo") if task["custom"] else None
    name = "NCCL" if backend == "nccl" else backend
    known = {"torch": torch, "group": group, "device": device, "custom": None}
    problem = ""
    if task["custom"]:
        try:
            exec(task["custom"], known)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    tell(ready=True, skipped=problem)

    @functools.cache
    def wanted(count: int, turn: int) -> Any:
        return sum(addends(torch, other, count, turn) for other in range(ranks))

    def plain(tensor: Any) -> Any:
        dist.all_reduce(tensor)
        return tensor

    kinds = [(name, plain)]
    # Every rank must do the same: if one cannot, none may.
    custom = known["custom"]
    if task["custom"]:
        votes: list[Any] = [None] * ranks
        dist.all_gather_object(votes, custom is not None, group=group)
        if all(votes):
            kinds.append(("custom all-reduce", custom))
    for by, reduce in kinds:
        for kind in TYPES:
            if by != name and kind == "int32":
                continue
            for count in ELEMENTS:
                step = f"{kind} x {count}"
                tell(by=by, step=step)
                wrong = 0
                for turn in range(ROUNDS):
                    mine = addends(torch, rank, count, turn).to(getattr(torch, kind)).to(device)
                    came = reduce(mine)
                    if came is None:  # the tensor is too large for it
                        break
                    if device.type == "cuda":
                        torch.cuda.synchronize(device)
                    wrong += int((came.cpu().to(torch.float64) != wanted(count, turn)).sum())
                else:
                    tell(by=by, step=step, done=True, wrong=wrong, of=ROUNDS * count)
    tell(over=True)


def words_of(place: str, rank: int) -> str:
    """The file with everything that a rank printed."""
    return os.path.join(place, f"rank-{rank}.txt")


def be_rank(task: dict[str, Any], rank: int, place: str, pipe: int, parent: int) -> None:
    """Answer in lines of JSON; never return."""

    def tell(**facts: Any) -> None:
        os.write(pipe, (json.dumps(facts) + "\n").encode())

    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(0)  # the parent ended before PR_SET_PDEATHSIG took effect
        # Libraries print to stdout and stderr, and a rank that dies says there why.
        words = os.open(words_of(place, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(words, 1)
        os.dup2(words, 2)
        check_all_reduce(task, rank, place, tell)
    except BaseException as error:
        tell(failed=f"{type(error).__name__}: {error}"[:500])
    finally:
        os._exit(0)


# -- the process above them -----------------------------------------------------------------


def judge(reports: list[list[dict[str, Any]]], late: bool) -> dict[str, Any]:
    """The answer from the ranks' reports; `late` if they did not finish in time."""
    lines = [line for rank in reports for line in rank]
    done = [line for line in lines if line.get("done")]
    skipped = next((line["skipped"] for line in lines if line.get("skipped")), "")
    answer = {
        "verdict": "right",
        "by": "",
        "text": f"the engine's own all-reduce could not be checked: {skipped}" if skipped else "",
        "checked": sorted({f"{line['by']} {line['step']}" for line in done}),
    }
    wrong = [line for line in done if line["wrong"]]
    died = [line["died"] for line in lines if line.get("died")]
    failed = [
        f"rank {place}: {line['failed']}"
        for place, rank in enumerate(reports)
        for line in rank
        if line.get("failed")
    ]
    if wrong:
        first = wrong[0]
        rank = next(place for place, found in enumerate(reports) if first in found)
        text = f"{first['wrong']} of {first['of']} sums of {first['step']} on rank {rank}"
        return {**answer, "verdict": "wrong", "by": first["by"], "text": text}
    if died or failed:  # a dead rank makes the others fail
        return {**answer, "verdict": "unclear", "text": (died or failed)[0]}
    if all(rank and rank[-1].get("over") for rank in reports):
        return answer
    if late and all(any(line.get("ready") for line in rank) for rank in reports):
        stuck = next((rank[-1] for rank in reports if rank[-1].get("step")), {})
        text = f"no answer to {stuck.get('step', 'the first sum')}"
        return {**answer, "verdict": "hung", "by": stuck.get("by", "NCCL"), "text": text}
    return {**answer, "verdict": "unclear", "text": "not ready in time"}


def collect_reports(
    task: dict[str, Any], pids: list[int], pipes: list[int], place: str
) -> tuple[list[list[dict[str, Any]]], bool]:
    """Collect the ranks' reports until all are done, one has failed or died, or time is up."""
    reports: list[list[dict[str, Any]]] = [[] for _ in pipes]
    rests = [b""] * len(pipes)
    deadline = time.monotonic() + task["ready_s"]
    waiting = True

    def hear(rank: int) -> bool:
        """Read what a rank has written; return False at its end, or if there is no more now."""
        try:
            data = os.read(pipes[rank], 1 << 16)
        except BlockingIOError:
            return False
        *lines, rests[rank] = (rests[rank] + data).split(b"\n")
        reports[rank] += map(json.loads, lines)
        return bool(data)

    with contextlib.ExitStack() as opened:
        selector = opened.enter_context(selectors.DefaultSelector())
        for rank, (pid, pipe) in enumerate(zip(pids, pipes, strict=True)):
            os.set_blocking(pipe, False)
            selector.register(pipe, selectors.EVENT_READ, (rank, False))
            # A rank's children may keep its pipe open: only the process itself shows its end.
            process = os.pidfd_open(pid)
            opened.callback(os.close, process)
            selector.register(process, selectors.EVENT_READ, (rank, True))
        while selector.get_map():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return reports, True
            for key, _ in selector.select(left_s):
                rank, ended = key.data
                if not ended and not hear(rank):
                    selector.unregister(pipes[rank])
                elif ended:
                    while hear(rank):
                        pass
                    selector.unregister(key.fileobj)
                    last = reports[rank][-1] if reports[rank] else {}
                    if not last.get("over") and not last.get("failed"):
                        reports[rank].append({"died": how_died(rank, pids[rank], place)})
            if any(
                FAILURES & line.keys() or line.get("wrong") for rank in reports for line in rank
            ):
                return reports, False
            if all(rank and rank[-1].get("over") for rank in reports):
                return reports, False
            if waiting and all(any(line.get("ready") for line in rank) for rank in reports):
                waiting, deadline = False, time.monotonic() + task["check_s"]
    return reports, False


def how_died(rank: int, pid: int, place: str) -> str:
    """Which rank ended, how, and the last line that it printed."""
    seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # `end` will reap it
    assert seen is not None
    how = f"killed by signal {seen.si_status}"
    if seen.si_code == os.CLD_EXITED:
        how = f"exit status {seen.si_status}"
    words = b""
    with contextlib.suppress(OSError), open(words_of(place, rank), "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - MAX_WORDS, 0))
        words = (file.read().strip().splitlines() or [b""])[-1]
    last = f": {words.decode('utf-8', 'replace')}" if words else ""
    return f"rank {rank} exited early ({how}){last}"


def end(pids: list[int]) -> None:
    """Kill the ranks and their children."""
    for pid in pids:
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + END_S
    while pids and time.monotonic() < deadline:
        pids = [pid for pid in pids if os.waitpid(pid, os.WNOHANG) == (0, 0)]
        time.sleep(0.01)


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Start the ranks, watch them, end them."""
    place, parent = tempfile.mkdtemp(prefix="caovan-all-reduce-"), os.getpid()
    pids: list[int] = []
    pipes: list[int] = []
    try:
        for rank in range(task["ranks"]):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                be_rank(task, rank, place, writer, parent)
            os.close(writer)
            pids.append(pid)
            pipes.append(reader)
        return judge(*collect_reports(task, pids, pipes, place))
    finally:
        end(pids)
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
