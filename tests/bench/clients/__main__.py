"""Fifty clients of five libraries over a real engine, while all that serves them fails in turn.

    python -m tests.bench.clients [--engine llamacpp|vllm] [--clients 50]

Both engines serve a tiny model that has one answer, so that every answer is known to be right or
not. Nothing here fails: the table counts what clients saw of each fault. "lost" ended with a bare
error before anything of an answer came, "foreign" with one that is not of the client's library.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caovand.core import tiny_chat
from caovand.engines.llamacpp.tiny_model import tiny_model
from tests.daemon_process import ROOT, Daemon, daemon
from tests.kept_sockets import KeptSockets, kept_sockets
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.real_engine import ENGINE

HERE = Path(__file__).parent
CLIENTS = ROOT / ".caovan/clients"
"""Made by `make bench-clients`: a Python environment, and node_modules."""
LLAMACPP = Path(os.environ.get("CAOVAN_TEST_ENGINES", ROOT / ".engines"))
BEFORE_S, AFTER_S = 3.0, 5.0
"""How long the clients chat before a fault, and after the engine serves again."""
EFFECT_S = 20.0
RESTART_S = 2.0  # RestartSec of the unit
LIBRARIES = ("openai", "openai, whole", "anthropic", "litellm", "langchain", "node openai")
OWN = ("openai", "anthropic", "litellm", "langchain", "langchain_openai")
"""Packages whose exceptions a client of the library expects."""
AGAIN = ("Retry-After", "send it again", "overloaded")
DEADLY_TOP_K = 41
DEADLY = re.compile(rb"top_k ?= ?41\b")
"""How the logs of both engines show the killer's sampling."""


@dataclass(frozen=True)
class Stage:
    """The daemon, its systemd, its engine's kind, and the folder with two copies of the model."""

    one: Daemon
    systemd: KeptSockets
    engine: str
    folder: Path
    url: str


def model_of(engine: str, folder: Path) -> None:
    """Make the model twice, as `a` and `b`."""
    for name in ("a", "b"):
        if engine == "llamacpp":
            (folder / f"{name}.gguf").write_bytes(tiny_model())
        else:
            made = [ENGINE, ROOT / "packaging/demo/make_model.py", folder / name, "--kind", "demo"]
            subprocess.run(made, check=True, stdout=subprocess.DEVNULL)


def configuration(engine: str, folder: Path, model: str, port: int, own: int) -> str:
    """Serve the model `a` or `b` behind a gateway on the port `own`."""
    path = folder / (f"{model}.gguf" if engine == "llamacpp" else model)
    words = '["--kv-cache-memory-bytes", "64M", "--enable-log-requests"]'
    vllm = f'python = "{ENGINE}"\nextra_args = {words}'
    return f"""
[model]
path = "{path}"
served_name = "tiny"
max_model_len = 2048
[server]
port = {port}
[engine]
{vllm if engine == "vllm" else ""}
[gateway]
listen = "127.0.0.1:{own}"
[watch]
hang_s = 15
confirm_s = 5
"""


class Clients:
    """Processes of the libraries, `count` threads in all; `rows` are requests that have ended."""

    def __init__(self, url: str, count: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self._processes, self._readers = [], []
        for place, library in enumerate(LIBRARIES):
            threads = str(count // len(LIBRARIES) + (place < count % len(LIBRARIES)))
            if library == "node openai":
                command = ["node", str(CLIENTS / "client.mjs"), url, "tiny", threads]
            else:
                python = str(CLIENTS / "bin/python")
                command = [python, str(HERE / "client.py"), library, url, "tiny", threads]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            reader = threading.Thread(target=self._read, args=(process,))
            reader.start()
            self._processes.append(process)
            self._readers.append(reader)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):  # libraries print, too
                self.rows.append(json.loads(line))

    def end(self) -> None:
        """Let every request that is under way end, and send no more."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process, reader in zip(self._processes, self._readers, strict=True):
            process.wait(PATIENCE_S)
            reader.join()


# -- faults ---------------------------------------------------------------------------------------


def core(stage: Stage) -> int:
    """The process that generates, 0 while there is none."""
    if stage.engine == "llamacpp":
        return int(stage.one.status()["engine_pid"] or 0)
    names = {process.name: process.pid for process in stage.one.tree()}
    return next((pid for name, pid in names.items() if name.startswith("VLLM::EngineCor")), 0)


def other_core(stage: Stage, before: int) -> int:
    """The process that generates, 0 while there is none but the one before."""
    return pid if (pid := core(stage)) != before else 0


def kill(pid: int) -> None:
    """Kill a process in the middle of answers: it stands still before."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)


def killed_daemon(stage: Stage) -> None:
    """Kill the daemon, and start another as systemd does."""
    stage.one.kill()
    time.sleep(RESTART_S)
    stage.systemd.restart(stage.one)


def other_model(stage: Stage) -> None:
    """Serve the other copy of the model."""
    file = stage.one.config_path
    file.write_text(file.read_text().replace(f"{stage.folder}/a", f"{stage.folder}/b"))
    stage.one.ctl("reload", "--no-wait")


def killer(stage: Stage) -> None:
    """Send a request that the engine dies of each time that it has it."""
    messages = [{"role": "user", "content": "die"}]
    # Its answer goes on for as long as there is context: the engine dies before it ends.
    endless = {"ignore_eos": True, "max_tokens": 2000}
    body = {"model": "tiny", "messages": messages, "top_k": DEADLY_TOP_K, **endless}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{stage.url}v1/chat/completions", json.dumps(body).encode(), headers
    )
    victim = core(stage)  # before it is needed: on a busy machine it takes seconds to find
    # By name: each engine begins a log of its own.
    words = ["tail", "-F", "-n", "+1", stage.one.folder / "log/engine.log"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as log:
        dying = threading.Thread(target=die_of_it, args=(stage, log, victim))
        dying.start()
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as got:
                print(f"    the killer: {got.status} {got.read()[:200]!r}", flush=True)
        except urllib.error.HTTPError as problem:
            print(f"    the killer: {problem.code} {problem.read()[:200]!r}", flush=True)
        log.terminate()
        dying.join()


def die_of_it(stage: Stage, log: subprocess.Popen[bytes], victim: int) -> None:
    """Kill the victim as soon as a line of its log shows that it has the killer, and the next."""
    assert log.stdout is not None
    for line in log.stdout:
        if DEADLY.search(line):
            os.kill(victim, signal.SIGKILL)
            victim = until(lambda dead=victim: other_core(stage, dead), "the next engine")


FAULTS: Sequence[tuple[str, Callable[[Stage], object]]] = (
    ("engine killed", lambda stage: kill(core(stage))),
    ("API server killed", lambda stage: kill(stage.one.status()["engine_pid"])),
    ("engine frozen", lambda stage: os.kill(core(stage), signal.SIGSTOP)),
    ("restart", lambda stage: stage.one.ctl("restart", "--no-wait")),
    ("mode stable", lambda stage: stage.one.ctl("mode", "stable", "--no-wait")),
    ("another model", other_model),
    ("gateway killed", lambda stage: os.kill(stage.one.status()["gateway"]["pid"], signal.SIGKILL)),
    ("daemon killed", killed_daemon),
    ("a killer request", killer),
)


def main() -> None:
    """Cause the faults one after the other, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.clients")
    parser.add_argument("--engine", choices=("llamacpp", "vllm"), default="llamacpp")
    parser.add_argument("--clients", type=int, default=50)
    names = [name for name, _ in FAULTS]
    parser.add_argument("--fault", choices=names, nargs="+", default=names, help="these alone")
    options = parser.parse_args()
    print(f"{options.clients} clients over {options.engine}; {os.cpu_count()} cores")
    print(f"{'':<18} {'whole':>6} {'ended':>6} {'lost':>6} {'foreign':>8} {'wrong':>6}"
          f" {'longest':>8}")  # fmt: skip
    with staged(options.engine) as stage:
        for name, cause in FAULTS:
            if name in options.fault:
                show(name, seen(stage, cause, options.clients))


@contextlib.contextmanager
def staged(engine: str) -> Iterator[Stage]:
    """A daemon that serves the model `a`."""
    own = free_port()
    with tempfile.TemporaryDirectory(prefix="caovan-clients-") as name:
        folder = Path(name)
        model_of(engine, folder)
        environ = {"CAOVAN_ENGINES": str(LLAMACPP)} if engine == "llamacpp" else {}
        text = configuration(engine, folder, "a", free_port(), own)
        with (
            kept_sockets(folder) as systemd,
            daemon(text, {**environ, **systemd.environ}) as one,
        ):
            yield Stage(one, systemd, engine, folder, f"http://127.0.0.1:{own}/")


def seen(stage: Stage, cause: Callable[[Stage], object], count: int) -> list[dict[str, Any]]:
    """What the clients saw around one fault."""
    serving(stage)
    clients = Clients(stage.url, count)
    try:
        until(lambda: len(clients.rows) >= count, "the first answers")
        time.sleep(BEFORE_S)
        before = identity(stage)
        cause(stage)
        with contextlib.suppress(AssertionError):  # the same plan in another mode
            until(lambda: identity(stage) != before, "the fault's effect", EFFECT_S)
        serving(stage)
        time.sleep(AFTER_S)
    finally:
        clients.end()
    return clients.rows


def identity(stage: Stage) -> object:
    """What changes when engine, gateway or daemon are others."""
    status = stage.one.status()
    assert stage.one.process is not None
    return status["engine_pid"], (status["gateway"] or {}).get("pid"), stage.one.process.pid


def serving(stage: Stage) -> None:
    """Wait until everything serves."""
    stage.one.until_state("SERVING")
    until(lambda: (stage.one.status()["gateway"] or {}).get("serving"), "the gateway")


def show(name: str, rows: list[dict[str, Any]]) -> None:
    """Print a row, and which errors there were."""
    answers = [row for row in rows if "error" not in row]
    whole = [row for row in answers if row["text"].strip() == tiny_chat.TEXT and row["end"]]
    errors = [row for row in rows if "error" in row]
    foreign = [row for row in errors if row["error"].partition(".")[0] not in OWN]
    lost = [row for row in errors if not row["begun"] and not any(a in row["says"] for a in AGAIN)]
    longest_s = max(row["ended"] - row["began"] for row in rows)
    print(f"{name:<18} {len(whole):>6} {len(errors):>6} {len(lost):>6} {len(foreign):>8}"
          f" {len(answers) - len(whole):>6} {longest_s:>6.1f} s", flush=True)  # fmt: skip
    kinds = Counter(
        (row["library"], row["error"], "begun" if row["begun"] else "not begun", row["says"][:160])
        for row in errors
    )
    for kind, count in kinds.most_common():
        print(f"    {count} x {', '.join(kind)}")
    for row in answers:
        if row not in whole:
            print(f"    wrong: {row['library']}: {row['text'][-80:]!r} {row['end']!r}")


if __name__ == "__main__":
    sys.exit(main())
