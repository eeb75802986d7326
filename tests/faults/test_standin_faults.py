"""Every failure id over the stand-in engine, on pretended RTX 2080 Ti cards.

The stand-in prints a real line of `tests/samples/` and goes wrong once; its next start is well.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from caovand.core.healing.failure import FAILURES, Failure
from tests.daemon_process import ROOT
from tests.engines.test_signatures import samples
from tests.faults.seen import NOTHING, Row, Seen, fault, request
from tests.patience import until
from tests.scenarios.test_supervision import configuration

DRIVERS = ROOT / "tests/standin/drivers"
GPU = {"STANDIN_BUILD": "cuda", "PYTHONPATH": f"{DRIVERS}:{ROOT}"}
Begin = Callable[[str, str], Row]


@dataclass(frozen=True)
class Fault:
    """A failure id, where it happens, the signature whose line is printed, what is done then."""

    failure: Failure
    place: str
    signature: str = ""
    do: str = "exit"
    ends: str = "SERVING"
    watch: str = ""
    count: int = 3
    """The completion at which it happens while serving; the first two are the proof's."""
    at: str = "completion"


FAULTS = (
    Fault("device-oom-load", "load", "oom.cuda"),
    Fault("kv-cache-none", "kv", "oom.kv.none"),
    Fault("kv-cache-short", "kv", "oom.kv.len"),
    Fault("vram-busy", "engine", "vram.busy"),
    Fault("device-oom-capture", "capture", "oom.cuda"),
    Fault("device-oom-run", "serving", "oom.cuda"),
    Fault("sampler-oom", "warmup", "oom.sampler"),
    Fault("illegal-access", "serving", "cuda.illegal"),
    Fault("launch-failure", "serving", "cuda.launch"),
    Fault("collective-timeout", "serving", "nccl.failed"),
    Fault("gpu-absent", "engine", "gpu.absent"),
    Fault("host-oom", "load", "ram.alloc"),
    Fault("shm-full", "load", "shm.full"),
    Fault("compile-cache-stale", "compile", "cache.stale"),
    Fault("shared-memory-limit", "warmup", "smem.tvm"),
    Fault("jit-toolchain", "warmup", "jit.nvcc"),
    Fault("backend-unsupported", "load", "backend.attention"),
    Fault("bad-arguments", "resolve", "args.cli", ends="FAILED"),
    Fault("model-missing", "load", "model.missing", ends="FAILED"),
    Fault("network", "resolve", "hub.network"),
    Fault("access-denied", "resolve", "hub.denied", ends="FAILED"),
    Fault("port-busy", "http", "port.busy"),
    Fault("plugin-error", "resolve", "plugin.load"),
    Fault("compile-failed", "compile", "compile.failed"),
    Fault("engine-died", "serving", "worker.died"),
    Fault("start-stall", "load", do="stall", watch="stall_s = 10"),
    Fault("hang", "serving", do="hang", watch="hang_s = 5\nconfirm_s = 2"),
    Fault("draft-collapse", "serving", do="barren"),
    Fault("answers-changed", "serving", do="wrong", watch="idle_probe_s = 1", at="canary", count=2),
    Fault(
        "answers-degenerate", "serving", do="nan", watch="idle_probe_s = 1", at="canary", count=2
    ),
    Fault("unknown", "load", "disk.full"),
)


# A rung of the plan, a wait, and a verdict without a word in the log.
QUICK = ("kv-cache-short", "vram-busy", "hang")


def test_every_failure_id_has_a_row() -> None:
    sums = {"gpu-lost", "allreduce-wrong", "allreduce-hung"}  # tests/scenarios/test_sums.py
    nodes = {"node-missing", "node-unfit", "node-lost"}  # tests/scenarios/test_cluster.py
    before = {"engine-unusable"}  # nothing starts: tests/daemon/test_inspection.py
    assert {one.failure for one in FAULTS} | before | sums | nodes == set(FAILURES)


def line_of(one: Fault) -> list[str]:
    """The sample line of a fault, as vLLM prints it in that phase."""
    found = [s for s in samples() if s.id == one.signature and s.taken and s.failure == one.failure]
    near = [sample for sample in found if sample.phase == one.place]
    return [sample.line for sample in (near or found)[:1]]


def cards(folder: Path, **told: Any) -> dict[str, str]:
    """The environment of a daemon with two pretended cards, which `folder/gpus.json` describes."""
    path = folder / "gpus.json"
    fresh = folder / "gpus.new"
    fresh.write_text(json.dumps({"cards": 2, **told}))
    fresh.rename(path)  # it may be read at this moment
    return {**GPU, "STANDIN_GPUS": str(path)}


def orders(one: Fault, folder: Path) -> dict[str, Any]:
    """What the stand-in is told."""
    told = {"print": line_of(one), "do": one.do, "times": 1, "memory": str(folder / "times")}
    place = {"at": one.at, "count": one.count} if one.place == "serving" else {"at": one.place}
    return {"fault": {**told, **place}}


def port_of(seen: Seen) -> int:
    return int(seen.daemon.status()["served"]["port"])


@pytest.mark.parametrize(
    "one",
    [pytest.param(one, marks=(pytest.mark.long,) * (one.failure not in QUICK)) for one in FAULTS],
    ids=lambda one: one.failure,
)
def test_it_is_understood_answered_and_leaves_nothing(
    one: Fault, model: Path, tmp_path: Path, row: Begin
) -> None:
    how = {"exit": "line and exit", "barren": "drafts never accepted"}.get(one.do, one.do)
    begun = row(f"{one.failure} in {one.place} ({one.signature or how})", "stand-in")
    config = configuration(model, orders(one, tmp_path), watch=f"failures = 5\n{one.watch}")
    with fault(begun, config, cards(tmp_path)) as seen:
        if one.place == "serving":
            seen.daemon.until_state("SERVING")
            seen.now()
            request(port_of(seen), "hybrid")
        else:
            seen.at_spawn()
        assert seen.failure() == one.failure
        if one.ends == "SERVING":
            seen.serving()
        else:
            seen.failed()
        assert seen.left() == NOTHING


@pytest.mark.long
def test_a_card_that_falls_off_the_bus_is_waited_for(
    model: Path, tmp_path: Path, row: Begin
) -> None:
    begun = row("gpu-lost in serving (NVML)", "stand-in")
    environ = cards(tmp_path)
    config = configuration(model, watch="gpu_sample_s = 0.5\nrecheck_s = 1")
    with fault(begun, config, environ) as seen:
        seen.daemon.until_state("SERVING")
        until(lambda: len(seen.daemon.status()["gpus"]) == 2, "samples of both cards")
        # Only a look at the engine tells which cards it uses.
        seen.now()
        cards(tmp_path, lost=[1])
        assert seen.failure() == "gpu-lost"
        seen.daemon.until_state("HOLD")
        begun.action = "HOLD until the card is back"
        cards(tmp_path)
        seen.serving()
        assert seen.left() == NOTHING


@pytest.mark.long
def test_an_engine_that_says_it_is_dead_is_replaced(
    model: Path, tmp_path: Path, row: Begin
) -> None:
    begun = row("/health 503, the process lives", "stand-in")
    one = Fault("engine-died", "serving", do="dead")
    with fault(begun, configuration(model, orders(one, tmp_path))) as seen:
        seen.daemon.until_state("SERVING")
        seen.now()
        request(port_of(seen), "hybrid")
        assert seen.failure() == "engine-died"
        seen.serving()
        assert seen.left() == NOTHING


@pytest.mark.long
def test_orphans_that_left_the_session_and_swallow_term_are_ended(model: Path, row: Begin) -> None:
    begun = row("API server killed, orphans elsewhere, TERM ignored", "stand-in")
    told = {"escape": "escapee-m", "ignore_term": True}
    with fault(begun, configuration(model, told)) as seen:
        pid = seen.daemon.until_state("SERVING")["engine_pid"]
        seen.now()
        os.kill(pid, signal.SIGKILL)
        assert seen.failure() == "engine-died"
        seen.serving()
        assert seen.left() == NOTHING
