"""`make bench`: what the daemon costs, measured on this machine and printed as a table.

The real engine, vLLM's CPU build with a tiny model, is bound to one core and the daemon to the
others, as in the tests; the stand-in engine shares the daemon's. Goals are printed next to the
figures, and how busy the machine was before; nothing here fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from caovand.adapters.child import Child, Launch
from caovand.adapters.engine.pump import LogSinks, Ring, RotatedFile
from caovand.adapters.log import Echo
from caovand.adapters.network.completions import complete
from caovand.adapters.network.http import Endpoint
from caovand.adapters.system import processes
from caovand.cli.common.client import DaemonClient
from caovand.core.config.schema import WatchSection
from caovand.core.health.detector import DetectorRules, begin, observe, proven
from caovand.core.health.observation import LogLine, ProgressCounters
from caovand.core.plan import Plan
from caovand.daemon.engine.watched_run import WatchedRun
from caovand.daemon.engine.watching import Watching
from caovand.engines.registry import engine_of
from caovand.engines.vllm.log.phases import read
from tests.bench.measures import memory_mb, pid, round_trip, shares
from tests.daemon_process import ROOT, Daemon, daemon
from tests.patience import until
from tests.ports import free_port
from tests.real_engine import ENGINE, configuration

MEASURED_S = 60
CLIENTS, THINKING_S = 2, 0.5
PROMPT, TOKENS = [1, 2, 3, 4, 5, 6, 7, 8], 16
LINES = 1_000_000
WATCHED = 20_000
DEATHS = 5
STARTS = 2
STANDIN = ROOT / "tests/standin/engine.py"


def main() -> None:
    """Measure everything and print the table."""
    busy = os.getloadavg()[0]
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="caovan-bench-") as folder:
        engine = Path(folder) / "python"
        engine.write_text(f'#!/bin/sh\nexec taskset -c {cores[-1]} {ENGINE} "$@"\n')
        engine.chmod(0o755)
        os.sched_setaffinity(0, set(cores[:-1]) or set(cores))
        rows = [watched(), pumped(Path(folder))]
        for name, python in (("stand-in", STANDIN), ("vLLM", engine)):
            port, metrics = free_port(), f'[metrics]\nlisten = "127.0.0.1:{free_port()}"'
            with daemon(configuration(python, "hybrid_copy", port, metrics)) as one:
                one.until_state("SERVING")
                rows += serving(one, port, name)
                if python is engine:
                    rows += [respawn(one), *added(one, port)]
    print(f"\non {len(cores)} cores, where the load average was {busy:.1f} before")
    print(f"{'what':<48} {'measured':>16}   goal")
    for what, measured, goal in rows:
        print(f"{what:<48} {measured:>16}   {goal}")


Row = tuple[str, str, str]


def serving(one: Daemon, port: int, engine: str) -> list[Row]:
    """What the daemon takes over this engine: idle, and while clients are answered."""
    (quiet,), quiet_ms = shares(MEASURED_S, pid(one)), round_trip(one)
    with clients(port) as answered:
        began = time.monotonic()
        (busy,), busy_ms = shares(MEASURED_S, pid(one)), round_trip(one)
        rate = len(answered) / (time.monotonic() - began)
    return [
        (f"over {engine}: memory, metrics on", f"{memory_mb(pid(one)):.1f} MB RSS", "under 55 MB"),
        (f"over {engine}: CPU, idle", f"{quiet:.2%} of a core", "under 0.5 %"),
        (f"over {engine}: CPU, {rate:.0f} requests a second", f"{busy:.2%} of a core", "under 1 %"),
        (f"over {engine}: status, idle, p50 / p99", quiet_ms, "p99 under 5 ms"),
        (f"over {engine}: status, under that load, p50 / p99", busy_ms, ""),
    ]


@contextlib.contextmanager
def clients(port: int) -> Iterator[list[int]]:
    """A small load: clients who ask for a short completion, again and again; the answers so far."""
    ended, answered = threading.Event(), list[int]()
    endpoint = Endpoint("127.0.0.1", port)

    def ask() -> None:
        while not ended.is_set():
            answered.append(complete(endpoint, "/v1/completions", "tiny", PROMPT, TOKENS, 120.0))
            ended.wait(THINKING_S)

    with ThreadPoolExecutor(CLIENTS) as pool:
        asking = [pool.submit(ask) for _ in range(CLIENTS)]
        try:
            yield answered
        finally:
            ended.set()
    for one in asking:
        one.result()  # where a client was not answered, the load was not what is printed


def pumped(folder: Path) -> Row:
    """Log lines through the pump with everything that hangs on it: ring, file, echo, detector."""

    async def run() -> float:
        ring = Ring(2000)
        file = RotatedFile(folder / "engine.log", limit=1 << 30)
        with open(os.devnull, "w") as nowhere:
            echo = Echo("journald", nowhere)
            watching = Watching(WatchedRun(
                engine_of(), 1, Plan("m", {}, {}), Endpoint("127.0.0.1", 1),
                WatchSection(), ring,
                lambda _: None, lambda *_: None,
            ))  # fmt: skip
            watching.observe(ProgressCounters(*[0.0] * 9, pending=0, at=0.0))

            def on_lines(lines: list[str]) -> None:
                echo.add("vllm", lines)
                watching.on_lines(lines)

            form = "(EngineCore pid=2) INFO 11-20 08:53:13 [core.py:402] line %.0f of many"
            began = time.monotonic()
            argv = ["/usr/bin/seq", "-f", form, "1", str(LINES)]
            launch, sinks = Launch(argv=argv, env=dict(os.environ)), LogSinks(ring, file, on_lines)
            child = Child(launch, sinks, folder / "ledger.json")
            await child.ended()
            await asyncio.to_thread(child.drain, 600)
            took = time.monotonic() - began
            await child.end(0)
        assert ring.count == LINES, f"lost lines: {ring.count}"
        with open(folder / "engine.log", "rb") as log:
            assert sum(1 for _ in log) == LINES
        return LINES / took

    return "log lines pumped, none lost", f"{asyncio.run(run()):,.0f} /s", "over 50,000 /s"


def watched() -> Row:
    """What understanding a busy server's log costs: phases, signatures and the detector."""
    log = ROOT / "tests" / "samples" / "logs" / "vllm-0.21.0-sm75x2-serving-mtp4.log"
    lines = log.read_text(encoding="utf-8").splitlines()
    lines = (lines * (WATCHED // len(lines) + 1))[:WATCHED]
    watch, rules = proven(begin(0.0), 0.0), DetectorRules()
    began = time.process_time()
    for number, line in enumerate(lines):
        mark, _ = read(line)
        watch, _ = observe(watch, LogLine(line, number / 1000, mark), rules)
    share = (time.process_time() - began) / (WATCHED / 1000)
    return "CPU for watching 1,000 log lines a second", f"{share:.2%} of a core", "under 1 %"


def respawn(one: Daemon) -> Row:
    """From the death of the API server to the next spawn, less the announced back-off."""
    beyond = []
    for _ in range(DEATHS):
        status = one.until_state("SERVING")
        with DaemonClient(one.folder / "run") as client:
            seen = client.ask("events")["events"][-1]["seq"]
        killed = time.time()
        os.kill(status["engine_pid"], signal.SIGKILL)
        events = until(lambda seen=seen: spawned_after(one, seen), "a respawn")
        waited = next(
            float(found[1])
            for event in events
            if (found := re.search(r"retry in ([\d.]+) s", event["text"]))
        )
        spawn = next(event for event in events if event["kind"] == "spawn")
        beyond.append(spawn["at"] - killed - waited)
        one.ctl("retry", "--no-wait")
    one.until_state("SERVING")
    worst = max(beyond)
    return "death to respawn beyond the back-off, worst of 5", f"{worst:.2f} s", "under 0.5 s"


def spawned_after(one: Daemon, seq: int) -> list[dict[str, object]]:
    """The events after `seq` once a spawn is among them."""
    with DaemonClient(one.folder / "run") as client:
        events = list(client.ask("events", since=seq)["events"])
    return events if any(event["kind"] == "spawn" for event in events) else []


def added(one: Daemon, port: int) -> list[Row]:
    """Start-up added to vLLM's own: the daemon's work before the spawn, and the whole difference.

    The whole is the time until /health answers, less that of the same command run bare; of
    `STARTS` starts each, in turn, the best.
    """
    with DaemonClient(one.folder / "run") as client:
        plan = client.ask("plan")
    one.stop()
    bare, supervised, before = [], [], []
    for _ in range(STARTS):
        bare.append(bare_start(plan, one, port))
        began, stamp = time.monotonic(), time.time()
        one.start()
        events = until(lambda: spawned_after(one, 0), "the spawn")
        spawn = next(event for event in events if event["kind"] == "spawn")
        before.append(float(str(spawn["at"])) - stamp)
        until_answering(port)
        supervised.append(time.monotonic() - began)
        one.until_state("SERVING")
        one.stop()
    what = f"start-up until /health, less the same bare ({min(bare):.1f} s)"
    return [
        ("start of caovand to start of vLLM", f"{min(before):.2f} s", "under 1 s"),
        (what, f"{min(supervised) - min(bare):+.1f} s", "under 1 s"),
    ]


def bare_start(plan: dict[str, Any], one: Daemon, port: int) -> float:
    """Seconds until the planned command answers with no daemon; ended again, all of it."""
    planned = {name: str(setting["value"]) for name, setting in plan["env"].items()}
    environ = {**one.environ, **planned}
    began = time.monotonic()
    with open(one.folder / "bare.log", "wb") as log:
        process = subprocess.Popen(
            plan["argv"], env=environ, stdout=log, stderr=log, start_new_session=True
        )
    until_answering(port)
    took = time.monotonic() - began
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: all(p.session != process.pid for p in processes.all_processes()), "its end")
    return took


def until_answering(port: int) -> None:
    """Wait for /health."""
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
