"""One card, one daemon: faults of an engine that serves a drafting hybrid, each healed by a start.

The table at the end has the seconds after each fault until it was found, until the next engine
started and until that served. What kills the core from outside is in test_serving.py.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.gpu.nvml import read_gpus
from caovand.adapters.system import processes
from caovand.cli.common.client import DaemonClient
from tests.cards.conftest import CARD, engine_plugin, running, serves, shown
from tests.cards.neighbour import card_mib, neighbour
from tests.cards.server import Server, configured, drawn
from tests.daemon_process import Daemon
from tests.patience import until
from tests.ports import free_port

WATCH = """stable_after_s = 2
hang_s = 8
confirm_s = 4
[policy]
tune_quiet_s = 10
"""
SETTLED_S = 3.0
FOUND_S, ENDED_S, BACK_S = 60.0, 20.0, 90.0
SPARE_MIB = 256
"""How far apart two readings of an unused card may be."""
PROMPTS, PROMPT = 8, 30_000


@dataclass
class Row:
    """A fault, and what came of it; seconds are counted from the fault on."""

    fault: str
    found: str = "-"
    respawn: str = "-"
    serving: str = "-"
    changed: str = "-"
    named: str = "-"
    request: str = "-"
    left: str = "-"
    mib: str = "-"


class Lowest(threading.Thread):
    """The least memory in use on the card since the last `again`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mib, self._ended = card_mib(), threading.Event()

    def again(self) -> None:
        self.mib = card_mib()

    def run(self) -> None:
        while not self._ended.wait(0.2):
            self.mib = min(self.mib, card_mib())

    def end(self) -> None:
        self._ended.set()
        self.join()


@dataclass
class Faults:
    """The daemon with faults in its engines, and a row of each."""

    server: Server
    asked: Path
    unused_mib: int
    lowest: Lowest
    rows: list[Row] = field(default_factory=list)

    @property
    def daemon(self) -> Daemon:
        return self.server.daemon

    def core(self) -> int:
        return next(one.pid for one in self.daemon.tree() if "EngineCor" in one.name)

    def begin(self, name: str) -> tuple[Row, dict[str, Any], set[int]]:
        """A new row, once the engine has served a little; its status and its processes."""
        self.asked.unlink(missing_ok=True)
        serves(self.daemon)
        until(lambda: self.daemon.status()["since_s"] > SETTLED_S, "an engine that is not new")
        self.rows.append(Row(name))
        print(f"\n{name}", flush=True)
        return self.rows[-1], self.daemon.status(), {one.pid for one in self.daemon.tree()}

    def fails(self, row: Row, began: float) -> None:
        """Wait until the daemon has found it, and read when."""
        row.found = until(lambda: since(self.daemon, began, "failure"), f"{row.fault}", FOUND_S)

    def heals(
        self, row: Row, began: float, before: dict[str, Any], old: set[int]
    ) -> dict[str, Any]:
        """Wait until it serves again, and fill the row; the status then."""
        after = serves(self.daemon)
        row.respawn = since(self.daemon, began, "spawn")
        row.serving = since(self.daemon, began, "state", "-> SERVING")
        gained = after["rungs"][len(before["rungs"]) :]
        row.changed = ", ".join(gained) or ("nothing" if after["rungs"] == before["rungs"] else "?")
        if found := after["last_failure"]:
            row.named = f"{found['failure']}: {found['text'][:100]}"
        row.left = str(len(old & {one.pid for one in processes.all_processes() if not one.zombie}))
        row.mib = str(self.lowest.mib)
        print(" | ".join(cells(row)), flush=True)
        return after

    def nothing_is_left(self, row: Row) -> None:
        assert row.left == "0"
        assert int(row.mib) <= self.unused_mib + SPARE_MIB


def since(one: Daemon, began: float, kind: str, text: str = "") -> str:
    """Seconds after which the first such event came; "" before that."""
    seen, entries = 0, []
    with DaemonClient(one.folder / "run") as client:
        while page := client.ask("events", since=seen)["events"]:
            entries += page
            seen = page[-1]["seq"]
    for entry in entries:
        if entry["kind"] == kind and entry["at"] >= began and text in entry["text"]:
            return f"{entry['at'] - began:.1f}"
    return ""


def cells(row: Row) -> list[str]:
    return [getattr(row, one.name) for one in fields(row)]


@pytest.fixture(scope="module")
def faults(cards: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    """A daemon whose engines import a plugin that fails a step where it is asked to."""
    plugin = engine_plugin(tmp_path_factory.mktemp("plugin"), "injected", "stray")
    port, unused = free_port(), card_mib()
    lowest = Lowest()
    lowest.start()
    with running(configured(port, more=WATCH, PYTHONPATH=str(plugin))) as one:
        found = Faults(Server(one, port), plugin / "fault", unused, lowest)
        yield found
        print(f"\nthe unused card: {unused} MiB", *table(found.rows), sep="\n", flush=True)
    lowest.end()


def table(rows: list[Row]) -> Iterator[str]:
    """The rows in Markdown."""
    for line in ([one.name for one in fields(Row)], ["---"] * len(fields(Row)), *map(cells, rows)):
        yield f"| {' | '.join(text.replace('|', '/') for text in line)} |"


Do = Callable[[Faults, dict[str, Any]], object]


def asks(faults: Faults, name: str) -> None:
    """Have the next step fail in this way."""
    part = faults.asked.with_suffix(".part")
    part.write_text(name)
    part.rename(faults.asked)


# A failure counts with those of its kind that the same plan had in the same daemon: the second
# unexplained death would degrade the plan, so the daemon is killed between two of those.
IN_A_ROW: tuple[tuple[str, Do, str, str], ...] = (
    ("illegal access", lambda on, _: asks(on, "illegal_access"),
     "illegal-access", "illegal memory access"),
    ("device-side assert", lambda on, _: asks(on, "device_assert"),
     "launch-failure", "device-side assert"),
    ("core stopped", lambda on, _: os.kill(on.core(), signal.SIGSTOP), "hang", ""),
    ("core by SIGSEGV", lambda on, _: asks(on, "segmentation_fault"), "engine-died", "seg"),
    ("core exits with 0", lambda on, _: asks(on, "exit_0"), "engine-died", "vanished"),
    ("API server killed", lambda on, status: os.kill(status["engine_pid"], signal.SIGKILL),
     "engine-died", "signal 9"),
)  # fmt: skip


def is_the_same_again(faults: Faults, name: str, act: Do, failure: str, text: str) -> None:
    """A fault while a request runs, after which the same plan serves, and nothing is left."""
    row, before, old = faults.begin(name)
    command = faults.daemon.commands()[-1]
    with faults.server.busy() as outcome:
        faults.lowest.again()
        began = time.time()
        act(faults, before)
        faults.fails(row, began)
    row.request = outcome[0]
    after = faults.heals(row, began, before, old)
    assert after["last_failure"]["failure"] == failure
    assert text in after["last_failure"]["text"].lower()
    assert (after["mtp"], after["rungs"]) == (before["mtp"], before["rungs"])
    assert faults.daemon.commands()[-1] == command
    assert row.request != "answered"
    faults.nothing_is_left(row)


@pytest.mark.parametrize(
    ("name", "act", "failure", "text"), IN_A_ROW, ids=[one[0].replace(" ", "_") for one in IN_A_ROW]
)
def test_an_engine_that_ends_or_hangs_is_followed_by_one_of_the_same_plan(
    faults: Faults, name: str, act: Do, failure: str, text: str
) -> None:
    is_the_same_again(faults, name, act, failure, text)


def test_a_killed_daemon_is_followed_by_one_that_serves_the_same_plan(faults: Faults) -> None:
    row, before, old = faults.begin("caovand killed")
    command = faults.daemon.commands()[-1]
    with faults.server.busy() as outcome:
        faults.lowest.again()
        began = time.time()
        faults.daemon.kill()
        faults.daemon.start()
    row.request = outcome[0]
    after = faults.heals(row, began, before, old)
    assert (after["last_failure"], after["rungs"]) == (None, before["rungs"])
    assert faults.daemon.commands()[-1] == command
    faults.nothing_is_left(row)


def test_an_unknown_exception_is_no_reason_to_degrade_the_plan(faults: Faults) -> None:
    is_the_same_again(
        faults, "unknown exception", lambda on, _: asks(on, "exception"),
        "engine-died", "a test asked for it",
    )  # fmt: skip


def test_a_neighbour_that_takes_memory_is_named_and_its_memory_used_once_it_has_left(
    faults: Faults,
) -> None:
    row, before, old = faults.begin("neighbour takes all memory")
    command = faults.daemon.commands()[-1]
    with neighbour() as other:
        faults.lowest.again()
        began, outcomes = time.time(), list[str]()
        clients = [
            threading.Thread(target=lambda: outcomes.append(faults.server.outcome(drawn(PROMPT))))
            for _ in range(PROMPTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        if set(outcomes) == {"answered"}:
            print("long prompts found room in what torch kept", flush=True)
            with faults.server.busy() as outcomes:
                began = time.time()
                asks(faults, "out_of_memory")
                faults.fails(row, began)
        row.request = ", ".join(sorted(set(outcomes)))
        faults.fails(row, began)
        after = faults.heals(row, began, before, old)
        assert after["last_failure"]["failure"] == "device-oom-run"
        assert row.changed.startswith("gmu-down")
        assert row.left == "0"
        # In a container the driver may show the host's pids, or none: then nobody can be named.
        seen = {pid for gpu in read_gpus({}) if gpu.index == CARD for pid, *_ in gpu.users}
        known = faults.core() in seen
        print(f"the driver shows pids {sorted(seen)}; the neighbour is {other.pid}", flush=True)
        if known:
            assert f"(pid {other.pid})" in after["last_failure"]["text"]
        row, before, old = faults.begin("the neighbour leaves")
        began = time.time()
    faults.lowest.again()
    if not known:
        shown(faults.daemon, "retry", "--full")
    until(lambda: since(faults.daemon, began, "spawn"), "the full plan", BACK_S)
    after = faults.heals(row, began, before, old)
    row.changed = "the full plan is back, " + ("by itself" if known else "by retry --full")
    row.named = "-"  # the last failure is the neighbour's still
    assert after["rungs"] == []
    assert faults.daemon.commands()[-1] == command
    faults.nothing_is_left(row)


def test_a_step_out_of_memory_is_answered_with_a_smaller_share(faults: Faults) -> None:
    row, before, old = faults.begin("a step out of memory")
    with faults.server.busy() as outcome:
        faults.lowest.again()
        began = time.time()
        asks(faults, "out_of_memory")
        faults.fails(row, began)
    row.request = outcome[0]
    after = faults.heals(row, began, before, old)
    assert after["last_failure"]["failure"] == "device-oom-run"
    assert row.changed.startswith("gmu-down")
    faults.nothing_is_left(row)


def test_a_busy_engine_that_is_stopped_leaves_nothing(faults: Faults) -> None:
    """The last one: it ends the daemon."""
    row, _, old = faults.begin("caovand stopped, busy")
    shown(faults.daemon, "incidents")
    with faults.server.busy() as outcome:
        began = time.time()
        assert faults.daemon.stop() == 0
        row.serving = f"ended after {time.time() - began:.1f}"
    row.request = outcome[0]
    row.left = str(len(old & {one.pid for one in processes.all_processes() if not one.zombie}))
    faults.lowest.again()
    until(lambda: card_mib() <= faults.unused_mib + SPARE_MIB, "an unused card", ENDED_S)
    row.mib = str(card_mib())
    print(" | ".join(cells(row)), flush=True)
    assert row.left == "0"
