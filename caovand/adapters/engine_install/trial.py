"""Prove an engine by running it: its version, and two completions of a model made here."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from caovand.adapters.engine_install.commands import RunCommand
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.lock import Lock
from caovand.adapters.files import trust
from caovand.adapters.network import http
from caovand.adapters.network.free_port import free_port
from caovand.adapters.network.http import Endpoint
from caovand.core.engine.install import ProofServer
from caovand.core.engine.record import Engine

PATIENCE_S = 120.0
PROMPTS = ([1, 2, 3], [4, 5, 6, 7])
TOKENS = 4


def try_server(engine: Engine, trial: ProofServer, lock: Lock, path: Path, run: RunCommand) -> None:
    """Start the environment's server once; EngineError names what failed."""
    what = f"prove {path.name}"
    assert engine.install.source is not None
    program = path / "bin" / engine.install.source.target
    done = run([str(program), *trial.version], {}, lambda: None)
    number = lock.version.partition(".")[0]
    if done.code or number not in done.output:
        raise EngineError(
            what,
            f"{program.name} ended with status {done.code} and did not name build {number}:"
            f" {_last_line(done.output)}",
            f"sudo caovanctl engine remove {path.name}, then install it again",
        )
    with tempfile.TemporaryDirectory(prefix="caovan-trial-") as folder:
        model, log = Path(folder, f"tiny{trial.suffix}"), Path(folder, "log")
        model.write_bytes(trial.model())
        port = free_port()
        with (
            log.open("wb") as out,
            subprocess.Popen(
                trial.command(str(program), str(model), port),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=trust.own_environ(os.environ),
                cwd="/",
            ) as server,
        ):
            try:
                _two_completions(engine, server, port)
            except (OSError, ValueError, LookupError, TypeError, http.Unanswered) as problem:
                server.kill()
                server.wait()
                last = _last_line(log.read_text(encoding="utf-8", errors="replace"))
                raise EngineError(
                    what,
                    f"{program.name} did not answer two completions ({problem}); its last line:"
                    f" {last}",
                    f"sudo caovanctl engine remove {path.name}, then install it again",
                ) from None
            finally:
                server.kill()


def _two_completions(engine: Engine, server: subprocess.Popen[bytes], port: int) -> None:
    endpoint, end_s = Endpoint("127.0.0.1", port), time.monotonic() + PATIENCE_S
    while True:
        if server.poll() is not None:
            raise OSError(f"it ended with status {server.returncode}")
        with contextlib.suppress(http.Unanswered):  # it is not listening yet
            if http.call(endpoint, engine.api.health, PATIENCE_S).status == 200:
                break
        if time.monotonic() > end_s:
            raise OSError(f"it was not ready after {PATIENCE_S:g} s")
        time.sleep(0.05)
    for prompt in PROMPTS:
        body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        answer = http.call(endpoint, engine.api.completions, PATIENCE_S, body)
        if answer.status != 200 or json.loads(answer.body)["usage"]["completion_tokens"] < 1:
            raise ValueError(f"status {answer.status}: {answer.body[:200]}")


def _last_line(output: str) -> str:
    return (output.strip() or "nothing").splitlines()[-1].strip()
