"""One trial: a private daemon serves the model as planned, and is measured."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caovand.adapters.files import safe_files
from caovand.adapters.files.directories import Directories
from caovand.adapters.system.term_then_kill import term_then_kill
from caovand.cli.common import own_daemon, waiting
from caovand.cli.common.client import DaemonClient
from caovand.cli.common.errors import CommandError, Exit
from caovand.core.config.schema import Config
from caovand.core.reporting.status import unused_kernels
from caovand.lab.bench import drive, target
from caovand.lab.bench.drive import BenchOrder
from caovand.lab.core.fieldtest.trials import FieldTrial

ANSWERS_S = 120.0
"""Maximum response time of a daemon on a busy machine."""
ENDS_S = 120.0
START_S = 3600.0
MAX_LOG_BYTES = 16 << 20
ENDS_WITH_US = "import ctypes; ctypes.CDLL(None).prctl(1, 15); "
"""PR_SET_PDEATHSIG, SIGTERM: the daemon stops its engine and exits if this process is killed."""


@contextlib.contextmanager
def daemon(config: Config, folder: Path) -> Iterator[DaemonClient]:
    """A daemon with this configuration and folders below `folder`, until the block ends."""
    places = Directories(*(folder / name for name in ("run", "state", "cache", "log")))
    path = own_daemon.write(folder, config)
    argv = [sys.executable, "-c", own_daemon.code(ENDS_WITH_US), "--config", str(path)]
    log = folder / "daemon.log"
    written = safe_files.open_own(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with os.fdopen(written, "wb") as out:
        child = subprocess.Popen(
            argv, env=own_daemon.environ(places), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True, cwd="/",
        )  # fmt: skip
    try:
        with DaemonClient(places.runtime) as client:
            _until_it_answers(client, child, log)
            yield client
    finally:
        term_then_kill(child, ENDS_S)


def _until_it_answers(client: DaemonClient, child: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + ANSWERS_S
    while child.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(CommandError):
            client.ask("version", answer_s=2.0)
            return
        time.sleep(0.1)
    lines = safe_files.read_text(log, MAX_LOG_BYTES).strip().splitlines()
    fact = lines[-1] if lines else "no line in its log"
    raise CommandError(Exit.FAILED, f"the trial's caovand did not answer: {fact}")


def empty_result(trial: FieldTrial) -> dict[str, Any]:
    """The empty result of a trial."""
    return {
        "name": trial.name, "title": trial.title, "state": "failed", "why": "", "start_s": None,
        "plan": None, "degraded": None, "failure": None, "modelled": None,
        "unused": (), "forecast": None, "bench": None, "events": [], "seconds": None,
    }  # fmt: skip


def run(trial: FieldTrial, config: Config, folder: Path, order: BenchOrder) -> dict[str, Any]:
    """Serve and measure; a failed trial is a result too."""
    result = empty_result(trial)
    try:
        with daemon(config, folder) as client:
            _serve(client, result, order)
    except CommandError as problem:
        result["why"] = problem.message
    return result


def _serve(client: DaemonClient, result: dict[str, Any], asked: BenchOrder) -> None:
    begun = time.monotonic()
    status = waiting.follow(client, "settled", START_S, quiet=False)
    result["plan"] = dict(client.ask("plan")) if status["served"] else None
    try:
        if status["state"] != "SERVING":
            raise CommandError(Exit.NOT_SERVING, f"{status['state']}: {status['reason']}")
        result["start_s"] = round(time.monotonic() - begun, 1)
        status = client.ask("status")
        result["forecast"], result["degraded"] = status["forecast"], status["degraded"]
        result["failure"] = status["last_failure"]
        result["unused"] = unused_kernels(status["reported"])
        served = target.find(client, None)
        order = BenchOrder(
            target.lengths(served, None, asked.prompts, asked.tokens), asked.at_once,
            asked.rounds, asked.tokens, asked.seed, uuid.uuid4().hex[:12],
        )  # fmt: skip
        result["bench"], cut = drive.measure(client, served, order)
        if cut is not None:
            raise cut.error or KeyboardInterrupt
        result["state"] = "measured"
    finally:
        with contextlib.suppress(CommandError):
            result["events"] = [event["text"] for event in client.ask("events")["events"]]
