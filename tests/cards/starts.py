"""Shapes planned as `caovanctl plan` does it, started by the planned command without a daemon."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.cli.common.planned import PlannedEngine, plan_for
from caovand.cli.common.survey import configuration as read
from caovand.cli.common.survey import inspect
from tests.cards.conftest import CACHE, CARD, EAGER, ENGINE
from tests.cards.shapes import CONTEXT, Shape
from tests.daemon_process import ROOT
from tests.ports import free_port

START_S, ENDED_S = 300.0, 30.0
READY = "Application startup complete"


def planned(shape: Shape, folder: Path, cache: Path = CACHE, port: int = 0) -> PlannedEngine:
    """The plan of this shape for the cards it is split over; what is compiled lies in `cache`."""
    gpus = [CARD] if shape.cards == 1 else list(range(shape.cards))
    words = ["--load-format", "dummy", *EAGER, *shape.args]
    if "full_attention_interval" in shape.config:
        words += ["--gdn-prefill-backend", "triton"]
    policy = {"tensor_parallel_size": shape.cards, **shape.policy}
    lines = "\n".join(f"{name} = {value}" for name, value in policy.items())
    file = folder / "caovan.toml"
    made = folder / "model"
    file.write_text(f"""
[model]
path = "{made if made.is_dir() else shape.folder(folder)}"
served_name = "tiny"
max_model_len = {CONTEXT}
[server]
port = {port or free_port()}
[engine]
kind = "vllm"
python = "{ENGINE}"
gpus = {gpus}
extra_args = [{", ".join(f'"{word}"' for word in words)}]
env = {{ VLLM_USE_FLASHINFER_SAMPLER = "0", TRITON_CACHE_DIR = "{cache}/triton" }}
[policy]
{lines}
""")
    config = read(file)
    return plan_for(config, inspect(config, None).with_model(config), None, cache=cache)


@contextlib.contextmanager
def started(found: PlannedEngine, log: Path) -> Iterator[str]:
    """The log of the planned command, run until it answers or ends."""
    env = {**os.environ, **found.command.env}
    with log.open("wb") as output:
        engine = subprocess.Popen(
            found.command.argv, env=env, cwd=ROOT, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_S
        while READY not in (text := log.read_text(errors="replace")):
            if engine.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"no start: {text[-3000:]}", pytrace=False)
            time.sleep(0.3)
        yield text
    finally:
        engine.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            engine.wait(ENDED_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.pid, signal.SIGKILL)
        engine.wait()
