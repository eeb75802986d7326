"""One card and two: forecasts of memory against what vLLM finds, for shapes not forecast before.

Each shape is planned as `caovanctl plan` does it and started by the planned command until it
answers; then once more with all compiled where CAOVAN_CARDS_WARM=1. A row is printed at each start.
CAOVAN_CARDS_ENGINE's Python runs the engine; nothing else may use the cards.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.cli.common.planned import Planned, plan_for
from caovand.cli.common.survey import configuration as read
from caovand.cli.common.survey import inspect
from tests.cards.conftest import CACHE, CARD, EAGER, ENGINE
from tests.cards.shapes import CONTEXT, SHAPES, Shape
from tests.daemon_process import ROOT, free_port

START_S, ENDED_S = 300.0, 30.0
MAX_OFF, MAX_GIB_TOO_MUCH = 0.02, 0.3
FOUND = {
    "weights GiB": r"Model loading took ([\d.]+) GiB",
    "cache GiB": r"Available KV cache memory: ([\d.]+) GiB",
    "cache tokens": r"KV cache size: ([\d,]+) tokens",
    "graphs GiB": r"Graph capturing finished in .* took (-?[\d.]+) GiB",
    "activations GiB": r"([\d.]+) GiB for peak activation",
    "with context GiB": r"([\d.]+) GiB for consumed memory",
    "profile s": r"[Pp]rofiling.* took ([\d.]+) s",
    "start s": r"init engine \(.*\) took ([\d.]+) s",
}
READY = "Application startup complete"
WAYS = ("cold", "warm") if os.environ.get("CAOVAN_CARDS_WARM") == "1" else ("cold",)


def planned(shape: Shape, folder: Path) -> Planned:
    """The plan of this shape for the cards it is split over."""
    gpus = [CARD] if shape.cards == 1 else list(range(shape.cards))
    words = ["--load-format", "dummy", *EAGER, *shape.args]
    if "full_attention_interval" in shape.config:
        words += ["--gdn-prefill-backend", "triton"]
    policy = {"tensor_parallel_size": shape.cards, **shape.policy}
    lines = "\n".join(f"{name} = {value}" for name, value in policy.items())
    file = folder / "caovan.toml"
    file.write_text(f"""
[model]
path = "{shape.folder(folder)}"
served_name = "tiny"
max_model_len = {CONTEXT}
[server]
port = {free_port()}
[engine]
kind = "vllm"
python = "{ENGINE}"
gpus = {gpus}
extra_args = [{", ".join(f'"{word}"' for word in words)}]
env = {{ VLLM_USE_FLASHINFER_SAMPLER = "0", TRITON_CACHE_DIR = "{CACHE}/triton" }}
[policy]
{lines}
""")
    config = read(file)
    return plan_for(config, inspect(config, None).with_model(config), None, cache=CACHE)


@contextlib.contextmanager
def started(found: Planned, log: Path) -> Iterator[str]:
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


def forecast(found: Planned) -> dict[str, float]:
    """What is foreseen of the figures in `FOUND`."""
    memory = found.memory
    assert memory is not None
    parts = dict(memory.parts)
    return {
        "weights GiB": memory.weights_mib / 1024,
        "cache GiB": memory.kv_mib / 1024,
        "cache tokens": memory.kv_tokens,
        "graphs GiB": parts.get("graphs", 0) / 1024,
        "activations GiB": parts.get("activations", 0) / 1024,
        "with context GiB": (parts.get("weights", 0) + parts.get("context", 0)) / 1024,
    }


def reported(text: str) -> dict[str, float]:
    """The figures that vLLM logs, the first of each; the last of the graphs."""
    found = {}
    for name, pattern in FOUND.items():
        if hits := re.findall(pattern, text):
            hit = hits[-1 if name.startswith("graphs") else 0]
            found[name] = float(hit.replace(",", ""))
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_start_takes_is_what_was_forecast(name: str, cards: int, tmp_path: Path) -> None:
    shape = SHAPES[name]
    if cards < shape.cards:
        pytest.skip(f"needs {shape.cards} cards")
    found = planned(shape, tmp_path)
    settings = {key: found.plan.value(key) for key in (
        "kv_cache_dtype", "speculative_config", "max_num_seqs", "max_num_batched_tokens",
        "gpu_memory_utilization", "attention_backend", "enforce_eager",
    )}  # fmt: skip
    parts = {part: round(size) for part, size in found.memory.parts} if found.memory else {}
    print(f"\n{name}: {settings}, MiB {parts}", flush=True)
    assert found.memory is not None
    assert found.memory.fits, found.memory.reason or found.memory.conflicts
    wanted = forecast(found)
    for way in WAYS:
        with started(found, tmp_path / f"engine-{way}.log") as text:
            real = reported(text)
        cells = (
            f"{wanted[key]:.5g} / {real[key]:.5g} ({wanted[key] / real[key] - 1:+.2%})"
            if wanted.get(key) and real.get(key) else f"{wanted.get(key, '-')} / {real.get(key)}"
            for key in FOUND
        )  # fmt: skip
        print(f"| {name} | {way} | {' | '.join(cells)} |", flush=True)
        for key in ("weights GiB", "cache GiB", "cache tokens"):
            assert abs(wanted[key] / real[key] - 1) <= MAX_OFF, key
        assert wanted["cache GiB"] - real["cache GiB"] <= MAX_GIB_TOO_MUCH
