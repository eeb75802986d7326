"""Prove that an environment is the engine its lock describes: import it, or run it once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caovand.adapters.engine_install.commands import RunCommand, last_line
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.lock import Lock, canonical
from caovand.adapters.files import trust
from caovand.adapters.network import http
from caovand.adapters.network.free_port import free_port
from caovand.adapters.network.http import Endpoint
from caovand.core.engine.install import Imports, ProofServer
from caovand.core.engine.record import Engine
from caovand.core.facts.shortfalls import INSTALL_DRIVER
from caovand.engines import registry

PLUGIN = "caovan-vllm-sm75-turbo3"
_PYTHON = "import platform; print(platform.python_version())"
_RUN_IN_ENV = Path(__file__).with_name("run_in_env.py")
SERVER_TIMEOUT_S = 120.0
PROMPTS = ([1, 2, 3], [4, 5, 6, 7])
TOKENS = 4


@dataclass(frozen=True)
class Proof:
    """The facts found about an engine. `notes` are for the operator."""

    python: str
    version: str
    torch: str
    plugin: str | None
    devices: tuple[str, ...]
    notes: tuple[str, ...]


def prove(lock: Lock, path: Path, run: RunCommand, *, plugin: bool = False) -> Proof:
    """Try the environment and compare it with its lock; EngineError names the difference.

    With `plugin` caovan's plugin must be in it too.
    """
    engine = registry.engine_of(lock.kind)
    if engine.install.trial is None:
        assert engine.install.imports is not None, f"no check exists for {lock.title}"
        return _prove_by_import(engine.install.imports, lock, path, run, plugin=plugin)
    try_server(engine, engine.install.trial, lock, path, run)
    asked = run([str(path / "bin" / "python"), "-I", "-c", _PYTHON], {}, lambda: None)
    notes = ["checked only without a card: no layer ran on a GPU"] if lock.build == "cuda" else []
    return Proof(asked.output.strip(), lock.version, "", None, (), tuple(notes))


def try_server(engine: Engine, trial: ProofServer, lock: Lock, path: Path, run: RunCommand) -> None:
    """Start the environment's server once; raises EngineError with the failure."""
    assert engine.install.source is not None
    program = path / "bin" / engine.install.source.target
    done = run([str(program), *trial.version], {}, lambda: None)
    number = lock.version.partition(".")[0]
    if done.code or number not in done.output:
        raise _not_proven(
            path,
            f"{program.name} exited with status {done.code} and did not report build {number}: "
            f"{last_line(done.output)}",
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
                last = last_line(log.read_text(encoding="utf-8", errors="replace"))
                raise _not_proven(
                    path,
                    f"{program.name} did not answer two completions ({problem}); its last line:"
                    f" {last}",
                ) from None
            finally:
                server.kill()


def _two_completions(engine: Engine, server: subprocess.Popen[bytes], port: int) -> None:
    endpoint, end_s = Endpoint("127.0.0.1", port), time.monotonic() + SERVER_TIMEOUT_S
    while True:
        if server.poll() is not None:
            raise OSError(f"it exited with status {server.returncode}")
        with contextlib.suppress(http.Unanswered):  # it is not listening yet
            if http.call(endpoint, engine.api.health, SERVER_TIMEOUT_S).status == 200:
                break
        if time.monotonic() > end_s:
            raise OSError(f"it was not ready after {SERVER_TIMEOUT_S:g} s")
        time.sleep(0.05)
    for prompt in PROMPTS:
        body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        answer = http.call(endpoint, engine.api.completions, SERVER_TIMEOUT_S, body)
        if answer.status != 200 or json.loads(answer.body)["usage"]["completion_tokens"] < 1:
            raise ValueError(f"status {answer.status}: {answer.body[:200]}")


def _prove_by_import(
    imports: Imports, lock: Lock, path: Path, run: RunCommand, *, plugin: bool
) -> Proof:
    report = _import(imports, lock, path, run)
    fault = next(filter(None, (check(report, lock) for check in CHECKS)), "")
    if not fault and plugin and report["caovan_plugin"] is None:
        fault = f"the plugin {PLUGIN} is not installed there"
    if fault:
        raise _not_proven(path, fault, _remedy(fault))
    devices = tuple(
        f"{device['name']} (SM{device['capability'][0]}{device['capability'][1]})"
        for device in report["devices"]
    )
    return Proof(
        report["python"],
        report["version"],
        report["torch"],
        report["caovan_plugin"],
        devices,
        (*report["warnings"], *_unproven(report, lock)),
    )


def _not_proven(path: Path, fact: str, remedy: str | None = None) -> EngineError:
    again = f"sudo caovanctl engine remove {path.name}, then install it again"
    return EngineError(f"prove {path.name}", fact, remedy or again)


def _import(imports: Imports, lock: Lock, path: Path, run: RunCommand) -> dict[str, Any]:
    """Import the modules in the environment; return its report, or raise EngineError."""
    env = {
        "PYTHONPATH": "",
        "PYTHONHOME": "",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        **imports.env,
    }
    asked = {key: getattr(imports, key) for key in ("modules", "kernels", "plugins")}
    python = str(path / "bin" / "python")
    done = run([python, "-I", str(_RUN_IN_ENV), json.dumps(asked)], env, lambda: None)
    lines = [line for line in done.output.splitlines() if line.startswith('{"python"')]
    try:
        report: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        if done.code == -signal.SIGILL:
            fact = f"{lock.title} uses instructions that this CPU lacks"
            raise _not_proven(path, fact, "use a machine whose CPU has AVX2") from None
        fact = f"its Python exited with status {done.code} and printed: {last_line(done.output)}"
        raise _not_proven(path, fact) from None
    return report


Check = Callable[[Mapping[str, Any], Lock], str]
"""Names what is wrong with a report; empty if nothing is."""


def _import_error(report: Mapping[str, Any], _: Lock) -> str:
    return str(report["errors"][0]) if report["errors"] else ""


def _other_release(report: Mapping[str, Any], lock: Lock) -> str:
    # builds name themselves 0.21.0 or 0.32.0+cpu
    if str(report["version"]).split("+")[0] == lock.version:
        return ""
    return f"it has {lock.title} {report['version']}, but the lock pins {lock.version}"


def _other_build(report: Mapping[str, Any], lock: Lock) -> str:
    built_for = "cpu" if report["cuda"] is None else "cuda"
    if built_for == lock.build:
        return ""
    return f"its torch {report['torch']} is a {built_for} build, but the lock is for {lock.build}"


def _other_torch(report: Mapping[str, Any], lock: Lock) -> str:
    pinned = next((pin.version for pin in lock.pins if canonical(pin.name) == "torch"), None)
    # torch adds "+cu130" to the version its wheel from PyPI has
    if pinned is None or pinned in (report["torch"], report["torch"].split("+")[0]):
        return ""
    return f"it has torch {report['torch']}, but the lock pins {pinned}"


CHECKS: tuple[Check, ...] = (_import_error, _other_release, _other_build, _other_torch)
"""Order matters: the report of a failed import lacks fields that later checks read."""


def _unproven(report: Mapping[str, Any], lock: Lock) -> Iterator[str]:
    """Notes about a CUDA build of which something is not proven here."""
    if lock.build == "cuda" and not report["devices"]:
        yield "no usable NVIDIA GPU here: only imports were checked, not kernels"
    if lock.build == "cuda" and not report["headers"]:  # plans for a CPU do not compile
        minor = ".".join(report["python"].split(".")[:2])
        yield f"Python.h is missing, which Triton needs: apt install python{minor}-dev"


def _remedy(error: str) -> str | None:
    if "libnuma" in error:
        return "apt install libnuma1"
    if "libgomp" in error:
        return "apt install libgomp1"
    if "GLIBC" in error:
        return "this system is too old for the build: use Ubuntu 22.04, Debian 12 or later"
    if re.search(r"driver.{0,200}too old|driver version is insufficient", error):
        return f"install a newer NVIDIA driver: {INSTALL_DRIVER}"
    return None
