"""The check of all-reduce with a real torch: two processes, gloo instead of NCCL."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from caovand.adapters.gpu import all_reduce
from caovand.core.facts.all_reduce import AllReduce

pytestmark = [pytest.mark.engine, pytest.mark.long]
CUSTOM = "import torch.distributed as dist\ndef custom(t):\n    dist.all_reduce(t)\n    return t"
# A collective that goes wrong, put in the place of torch's before the script runs.
FAULTY = """
import os, sys, time, torch.distributed as dist
kind, path, task = sys.argv[1:]
sound = dist.all_reduce
def faulty(tensor, *more, **options):
    sound(tensor, *more, **options)
    if tensor.numel() >= 1 << 20:
        if kind == "wrong":
            tensor[12345] += 1
        if kind == "hung" and dist.get_rank() == 1:
            time.sleep(600)
dist.all_reduce = faulty
sys.argv = ["-c", task]
exec(compile(open(path).read(), path, "exec"), {"__name__": "__main__"})
"""


def test_sound_sums_are_right_also_with_an_all_reduce_of_the_engine_s_own(
    engine: Path,
) -> None:
    sums = all_reduce.finish(
        all_reduce.start(str(engine), AllReduce(2, CUSTOM, {}), dict(os.environ), "gloo")
    )
    assert (sums.verdict, sums.text) == ("right", "")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["wrong", "hung"])
def test_a_faulty_collective_is_found(engine: Path, kind: str) -> None:
    check_s = 5 if kind == "hung" else 120
    task = {"ranks": 2, "backend": "gloo", "custom": "", "ready_s": 240, "check_s": check_s}
    command = [str(engine), "-c", FAULTY, kind, str(all_reduce.SCRIPT), json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["verdict"], answer["by"]) == (kind, "gloo")
    assert "float16 x 1048576" in answer["text"]
