"""A real vLLM (the CPU build), bound to one core; the tests and the daemon use the others.

On a machine with two cores, a busy engine starves its neighbours for 10 s or more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon_process import ROOT

ENGINE = ROOT / ".engines/current/bin/python"
MODELS = ROOT / ".caovan/models"


@pytest.fixture(scope="session")
def last_core() -> Iterator[int]:
    """Reserve the last core for the engine; the tests keep to the others."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cores[:-1]) or set(cores))
    yield cores[-1]
    os.sched_setaffinity(0, set(cores))


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory, last_core: int) -> Path:
    """The engine's Python, wrapped so that it runs on the last core."""
    if not ENGINE.exists():
        pytest.fail("no engine to test with: run `make engine` first", pytrace=False)
    wrapper = tmp_path_factory.mktemp("engine") / "python"
    wrapper.write_text(f'#!/bin/sh\nexec taskset -c {last_core} {ENGINE} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def found_out(engine: Path) -> Path:
    """The folder in which this run's daemons store what they learn about the engine and its
    models."""
    return engine.parent / "found-out"


def configuration(engine: Path, model: str, port: int, more: str = "") -> str:
    """A configuration that serves a tiny model with a real vLLM."""
    return f"""
[model]
path = "{MODELS / model}"
served_name = "tiny"
max_model_len = 2048
[server]
port = {port}
[engine]
python = "{engine}"
extra_args = ["--kv-cache-memory-bytes", "64M"]
[watch]
shutdown_timeout_s = 3
{more}
"""
