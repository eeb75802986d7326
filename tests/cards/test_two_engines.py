"""One card: another release of vLLM is taken into use under a daemon that serves, and back again.

CAOVAN_CARDS_ENGINES is a folder of finished engines, `current` among them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from caovand.adapters.engine_install import places
from tests.cards.conftest import CARD, OUR_KERNELS, configuration, running, serves, shown
from tests.daemon_process import Daemon
from tests.ports import free_port

ENGINES = Path(os.environ.get("CAOVAN_CARDS_ENGINES", "/var/lib/caovan/engines"))


def test_a_model_moves_to_another_engine_and_back(cards: int) -> None:
    before = places.current(ENGINES)
    others = [one for one in places.engines(ENGINES) if one.kind == "vllm" and one != before]
    if before is None or not others:
        pytest.skip(f"needs two engines in {ENGINES}")
    python = ENGINES / "current/bin/python"
    config = configuration("hybrid", free_port(), [CARD], OUR_KERNELS, python=python)
    with running(config) as one:
        assert serves(one)["reported"]["version"] == before.version
        moved(one, "use", others[0].name)
        assert serves(one)["reported"]["version"] == others[0].version
        shown(one, "status")
        moved(one, "rollback")
        back = serves(one)
        assert (back["reported"]["version"], back["restarts"]) == (before.version, 2)
        assert not back["failures"]


def test_a_tried_engine_is_measured_and_kept_or_not(cards: int) -> None:
    before = places.current(ENGINES)
    others = [one for one in places.engines(ENGINES) if one.kind == "vllm" and one != before]
    if before is None or not others:
        pytest.skip(f"needs two engines in {ENGINES}")
    python = ENGINES / "current/bin/python"
    config = configuration("hybrid", free_port(), [CARD], OUR_KERNELS, python=python)
    with running(config) as one:
        serves(one)
        words = ("engine", "try", others[0].version, "--root", str(ENGINES))
        done = subprocess.run(  # its progress goes where this test's goes
            [*one.caovanctl, *words], env=one.environ, stdout=subprocess.PIPE, text=True,
            timeout=1200, check=False,
        )  # fmt: skip
        print(done.stdout, flush=True)
        kept = f"{others[0].name} is kept" in done.stdout
        assert (done.returncode == 0) is kept
        served = others[0] if kept else before
        assert serves(one)["reported"]["version"] == served.version
        places.switch(ENGINES, before.name)


def moved(one: Daemon, *words: str) -> None:
    """Take another engine into use, and reload."""
    assert one.ctl("engine", *words, "--root", str(ENGINES)).returncode == 0
    print(one.ctl("reload").stdout, flush=True)
