"""Observations of one fault from outside: a row of the matrix."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caovand.adapters.system import processes
from caovand.cli.common.client import DaemonClient
from caovand.preparation import memories
from tests.daemon_process import Daemon, daemon
from tests.patience import until

REQUEST_S = 120.0
NOTHING = "nothing"
OWN_SHARED = 'mount --bind "$1" /dev/shm && shift && exec "$@"'


@dataclass
class Row:
    """One line of the printed table; seconds are None where it never came to that."""

    fault: str
    engine: str
    detected: str = "-"
    after_s: float | None = None
    action: str = "-"
    serving_s: float | None = None
    left: str = "?"
    passed: bool = False


@dataclass
class Seen:
    """A daemon with a fault in it; `began` is when the fault was there (Unix time)."""

    daemon: Daemon
    row: Row
    shared: Path | None
    began: float = field(default_factory=time.time)
    since: int = 0

    def now(self) -> None:
        """The fault happens now; what was before does not count."""
        notices = self.notices()
        self.since, self.began = (notices[-1]["seq"] if notices else 0), time.time()

    def at_spawn(self) -> None:
        """The fault is there from the engine's first start on."""
        until(lambda: self._first("spawn"), "a start of the engine")
        self.began = self._first("spawn")["at"]

    def notices(self) -> list[dict[str, Any]]:
        """All events since the fault."""
        found: list[dict[str, Any]] = []
        since = self.since
        with DaemonClient(self.daemon.folder / "run") as client:
            while entries := client.ask("events", since=since)["events"]:
                found += entries
                since = entries[-1]["seq"]
        return found

    def _first(self, kind: str, state: str = "", after: float = 0.0) -> Any:
        for entry in self.notices():
            fits = entry["kind"] == kind and entry["at"] >= after
            if fits and (not state or entry["data"].get("state") == state):
                return entry
        return None

    def failure(self, *, kept: bool = True) -> str:
        """Wait for the failure to be told; which one it is, by its incident if that is kept."""
        until(lambda: self._first("failure"), "the failure")
        told = self._first("failure")
        self.row.after_s = max(told["at"] - self.began, 0.0)  # it may be older than our look
        if not kept:
            self.row.detected = self.daemon.status()["last_failure"]["failure"]
            self.row.action = self.daemon.status()["remedy"]
            return self.row.detected

        def report() -> Any:
            rows = json.loads(self.daemon.ctl("incidents", "--json").stdout or "[]")
            # It is written after its evidence is taken; those of earlier faults are there already.
            return [row for row in rows if _seconds(row["at"]) >= int(self.began)]

        rows = until(report, "the incident")
        first = min(rows, key=lambda row: abs(_seconds(row["at"]) - told["at"]))
        self.row.detected = first["failure"]
        self.row.action = first["action"] or told["text"].split(":")[0]
        return str(first["failure"])

    def serving(self) -> dict[str, Any]:
        """Wait until it serves after the failure; the status then."""
        until(lambda: self._served_at() is not None, "serving again")
        self.row.serving_s = self._served_at() - self.began
        return self.daemon.until_state("SERVING")

    def _served_at(self) -> Any:
        failed = self._first("failure")
        for entry in self.notices():
            serves = entry["text"].endswith("-> SERVING") or "-> SERVING" in entry["text"]
            if serves and (failed is None or entry["at"] >= failed["at"]):
                return entry["at"]
        return None

    def failed(self) -> None:
        """Wait until the daemon gives the plan up and leaves it to the operator."""
        status = self.daemon.until_state("FAILED")
        self.row.action = f"FAILED: {status['last_failure']['failure']}, the operator must act"

    def unused(self) -> set[str]:
        """Shared memory that no living process has; only root can look at it by itself."""
        return _unused(self.shared) if self.shared else set()

    def left(self) -> str:
        """What is left behind once the daemon was stopped."""
        one = self.daemon
        one.spawned()
        assert one.stop() == 0, one.log()
        found = [f"{process.name} (pid {process.pid})" for process in one.tree()]
        found += [str(path) for path in (one.folder / "cache").glob("tmp-*/*")]
        state = memories.folder(one.state)
        ledgers = (memories.PROCESSES, memories.FILES)
        found += [name for name in ledgers if (state / name).exists()]
        found += sorted(self.unused())
        self.row.left = ", ".join(found) or NOTHING
        return self.row.left


@contextlib.contextmanager
def fault(
    row: Row,
    config: str,
    environ: dict[str, str] | None = None,
    found_out: Path | None = None,
) -> Iterator[Seen]:
    """A daemon in which a fault is, or will be; `found_out` as in `daemon`.

    It gets a /dev/shm of its own where we are root: other engines may run on this machine.
    """
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(_own_shared()) if os.geteuid() == 0 else None
        unshare = ("unshare", "-m", "--propagation", "private", "sh", "-c", OWN_SHARED, "sh")
        wrapper = (*unshare, str(shared)) if shared else ()
        one = stack.enter_context(daemon(config, environ, wrapper, found_out))
        yield Seen(one, row, shared)


@contextlib.contextmanager
def _own_shared() -> Iterator[Path | None]:
    place = Path(tempfile.mkdtemp(prefix="caovan-shm-"))
    mount = ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(place)]
    made = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    try:
        yield place if made else None
    finally:
        if made:
            subprocess.run(["umount", "-l", str(place)], check=True)
        place.rmdir()


def _unused(shared: Path) -> set[str]:
    """Names in this folder that no living process has, by inode: names in maps may differ."""
    left = {path.name: path.stat().st_ino for path in shared.iterdir()}
    number = shared.stat().st_dev
    device = f"{os.major(number):02x}:{os.minor(number):02x}"
    used: set[int] = set()
    for process in processes.all_processes() if left else ():
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
            rows = (line.split() for line in maps.splitlines())
            used |= {int(row[4]) for row in rows if row[3] == device}
    return {name for name, inode in left.items() if inode not in used}


def request(port: int, model: str, tokens: int = 8) -> threading.Thread:
    """A client's completion, sent from a thread; what becomes of it is the client's affair."""
    body = {"model": model, "prompt": "hello there", "max_tokens": tokens, "ignore_eos": True}
    call = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )

    def work() -> None:
        with contextlib.suppress(OSError, ValueError):
            urllib.request.urlopen(call, timeout=REQUEST_S).read()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _seconds(stamp: str) -> float:
    return time.mktime(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S"))


def table(rows: list[Row]) -> list[str]:
    """The rows as lines of text in columns."""

    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f} s"

    cells = [("", "fault", "engine", "detected as", "after", "action", "serving again", "left")]
    for row in rows:
        mark = "ok" if row.passed else "NO"
        cells.append((
            mark, row.fault[:52], row.engine, row.detected, seconds(row.after_s), row.action[:60],
            seconds(row.serving_s), row.left[:60],
        ))  # fmt: skip
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
