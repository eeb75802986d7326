"""Proofs on real NVIDIA cards: CAOVAN_CARDS_ENGINE names the Python of a vLLM for CUDA.

    CAOVAN_CARDS_ENGINE=/opt/caovan/engines/current/bin/python python3 -m pytest -s tests/cards

The models have random weights and are made on the chosen card. Plans run eagerly, with vLLM's own
sampler, and on Hopper with Triton's Gated DeltaNet, so that no start compiles for minutes: figures
compare plans, splits and links, no more. CAOVAN_CARDS_GRAPHS=1 runs them with CUDA graphs. What
engines compile stays in CAOVAN_CARDS_CACHE, so that only the first start is cold.
Nothing here is collected without CAOVAN_CARDS_ENGINE.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.gpu.nvml import read_gpus
from tests.cards.vocabulary import write_vocabulary
from tests.daemon_process import ROOT, Daemon, daemon

ENGINE = os.environ.get("CAOVAN_CARDS_ENGINE", "")
MODELS = Path(os.environ.get("CAOVAN_CARDS_MODELS", "/tmp/caovan-cards-models"))
CARD = int(os.environ.get("CAOVAN_CARDS_CARD", "0"))
"""What tests of one card use."""
CACHE = Path(os.environ.get("CAOVAN_CARDS_CACHE", "/tmp/caovan-cards-cache"))
collect_ignore_glob = [] if ENGINE else ["test_*.py"]
SERVES_S = 900.0
TOKENIZER = "tokenizer.json"
EAGER = [] if os.environ.get("CAOVAN_CARDS_GRAPHS") == "1" else ["--enforce-eager"]
ARGS = {"dense": EAGER, "hybrid": [*EAGER, "--gdn-prefill-backend", "triton"]}
OUR_KERNELS = ["--dtype", "half"]
"""What they need that is planned for Turing alone; CAOVAN_SM75_FORCE has them act elsewhere."""


@pytest.fixture(scope="session")
def cards() -> int:
    """How many cards there are; at least one."""
    if not (found := len(read_gpus({}))):
        pytest.fail("NVML shows no card", pytrace=False)
    return found


def model(kind: str) -> Path:
    """A model of this kind, made once."""
    if not (MODELS / kind / "config.json").exists():
        maker = Path(__file__).with_name("make_models.py")
        words = [ENGINE, str(maker), kind, str(MODELS / kind)]
        own = {**os.environ, "CUDA_VISIBLE_DEVICES": str(CARD)}
        subprocess.run(words, check=True, cwd=ROOT, env=own)
        config = json.loads((MODELS / kind / "config.json").read_text())
        count = config.get("text_config", config)["vocab_size"]
        write_vocabulary(MODELS / kind / TOKENIZER, MODELS / kind / TOKENIZER, count)
    return MODELS / kind


def long_model(folder: Path, tokens: int) -> Path:
    """The hybrid, which has random weights anyway, with another limit of its context."""
    made, long = model("hybrid"), folder / "long"
    long.mkdir()
    for file in made.iterdir():
        (long / file.name).symlink_to(file)
    config = json.loads((made / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = tokens
    (long / "config.json").unlink()
    (long / "config.json").write_text(json.dumps(config))
    return long


def configuration(
    kind: str,
    port: int,
    gpus: Sequence[int],
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    more: str = "",
    python: str | Path = ENGINE,
    path: Path | None = None,
    context: int | None = None,
    engine: str = "",
) -> str:
    """A configuration that serves such a model on these cards.

    `engine` are further lines of [engine], and `more` begins in [watch]. `path` is another model of
    that kind, and `context` its tokens.
    """
    variables = {
        "VLLM_USE_FLASHINFER_SAMPLER": "0", "TRITON_CACHE_DIR": f"{CACHE}/triton", **(env or {})
    }  # fmt: skip
    table = ", ".join(f'"{name}" = "{value}"' for name, value in variables.items())
    return f"""
[model]
path = "{path or model(kind)}"
served_name = "tiny"
{f"max_model_len = {context}" if context else ""}
[server]
port = {port}
[engine]
kind = "vllm"
python = "{python}"
{f"gpus = {list(gpus)}" if gpus else ""}
extra_args = {json.dumps([*ARGS[kind], *args])}
env = {{{table}}}
{engine}
[watch]
shutdown_timeout_s = 5
{more}
"""


def engine_plugin(folder: Path, name: str, *others: str) -> Path:
    """A folder with this module as a plugin of vLLM, and others that it imports."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    entry = f"[vllm.general_plugins]\n{name} = {name}:register\n"
    (info / "entry_points.txt").write_text(entry)
    for module in (name, *others):
        shutil.copy(Path(__file__).with_name(f"{module}.py"), folder)
    return folder


@contextlib.contextmanager
def running(config: str) -> Iterator[Daemon]:
    """A daemon with this configuration, over the compiled code of those before it."""
    with daemon(config, {"CACHE_DIRECTORY": str(CACHE)}) as one:
        try:
            yield one
        except BaseException:  # its folder is gone when somebody reads of the failure
            shown(one, "status")
            shown(one, "incidents")
            log = (one.folder / "log/engine.log").read_text(errors="replace")
            print(*log.splitlines()[-200:], sep="\n", flush=True)
            raise


def serves(one: Daemon) -> dict[str, Any]:
    """Wait until it serves, printing the phases; fails at once where it cannot."""
    began, seen, held = time.monotonic(), "", 0.0
    while (at := time.monotonic() - began) < SERVES_S:
        status = one.status()
        if (now := f"{status['state']} {status.get('phase') or ''}") != seen:
            print(f"  {at:5.0f} s  {now}", flush=True)
            seen, held = now, at
        if status["state"] == "SERVING":
            return status
        stuck = status["state"] == "HOLD" and at - held > 30
        if stuck or status["state"] == "FAILED":
            break
        time.sleep(0.5)
    pytest.fail(f"{seen}: {one.status().get('finding')}\n{one.log()}", pytrace=False)


def shown(one: Daemon, *words: str) -> str:
    """What caovanctl prints, shown and returned."""
    done = one.ctl(*words)
    print(done.stdout + done.stderr, flush=True)
    return done.stdout
