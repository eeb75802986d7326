"""The supervisor: the daemon's only loop, its slots, and what they share.

Everything here runs on the main thread's event loop. Events within a slot are handled in `slot`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from caovand.adapters.child import Engines
from caovand.adapters.files import config_file
from caovand.adapters.files.directories import Directories
from caovand.adapters.log import Echo
from caovand.adapters.servers.listening import Listeners
from caovand.adapters.servers.server_process import GATEWAY, PAGE
from caovand.adapters.system import processes, wall_clock
from caovand.adapters.system.notify import Notifier
from caovand.core import limits
from caovand.core.config.key import ConfigError
from caovand.core.config.schema import Config, unapplied
from caovand.core.facts.ownership import Process
from caovand.core.health.detector import reading_interval_s
from caovand.core.lifecycle.events import LifecycleEvent, TimePassed
from caovand.core.lifecycle.state import State
from caovand.core.reporting import status
from caovand.core.reporting.wire import Notice
from caovand.core.slot import slots_of
from caovand.daemon.cards import Cards
from caovand.daemon.kernel import KernelLines
from caovand.daemon.keys import Keys
from caovand.daemon.records.history import History
from caovand.daemon.records.unwritten import Unwritten
from caovand.daemon.server_supervisor import ServerSupervisor
from caovand.daemon.shared import Changes, Shared, now
from caovand.daemon.shortage import Shortage
from caovand.daemon.slot import Slot
from caovand.daemon.tasks import Tasks
from caovand.preparation.confinement import server_confinement

MAX_TICK_S = 5.0
POLL_S = 5.0  # at most
NOTICES = 1000
RECORD_S = 5.0


class Supervisor:
    """Runs the slots: those in `config`, or `slots`, each with its own configuration."""

    def __init__(
        self,
        config_path: Path,
        config: Config,
        directories: Directories,
        environ: Mapping[str, str],
        log: Any,
        echo: Echo,
        slots: Mapping[str, Config] | None = None,
    ) -> None:
        self.config_path, self.config = config_path, config
        self._begun_with = config
        self.notices: deque[Notice] = deque(maxlen=NOTICES)
        self.notifier = Notifier(environ)
        self.listeners: list[Callable[[Notice], None]] = []
        self.slots: dict[str, Slot] = {}
        self._log = log
        self._quit = False
        self._fault: BaseException | None = None
        self._shown = ""
        changes = Changes(self._show_status)
        self.keys = Keys(directories.state, self.notice, changes.wake)
        kernel, configs = KernelLines(), slots_of(config) if slots is None else slots
        self._shared = Shared(
            config_path=config_path,
            directories=directories,
            environ=environ,
            log=log,
            echo=echo,
            publish=self._notice_of,
            changes=changes,
            tasks=Tasks(self.give_up),
            shortage=Shortage(self.notice),
            unwritten=Unwritten(directories, self.notice),
            kernel=kernel,
            cards=Cards(config.watch.gpu_sample_s, kernel.kept.append),
            engines=Engines(),
            history=History(directories.state, config.history.days, self.notice),
            keys=self.keys,
            all_reduce=asyncio.Lock(),
            several=len(configs) > 1,
        )
        listeners = Listeners(environ, self.notifier)
        self.page = ServerSupervisor(PAGE, directories.runtime, environ, self.notice, listeners)
        self.gateway = ServerSupervisor(
            GATEWAY, directories.runtime, environ, self.notice, listeners
        )
        for name, slot_config in configs.items():
            self.slots[name] = Slot(name, slot_config, self._shared)
        self._shown = self.one_line

    # -- the loop ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Tick, feed the watchdog and poll the engines until every slot has quit."""
        for slot in self.slots.values():
            self._shared.tasks.begin(slot.part.begin())
        beat_s = min(MAX_TICK_S, (self.notifier.watchdog_s or MAX_TICK_S * 3) / 3)
        next_poll = now()
        while not self._quit and self._working():
            self.notifier.alive()
            at = now()
            for slot in self._working():
                slot.apply(TimePassed(at=at, chance=random.random()))
            if at >= next_poll:
                next_poll = at + self._poll_s()
                try:
                    self._poll()
                except Exception as problem:
                    if not self._shared.shortage.covers("supervise the engine", problem):
                        raise
                self._shared.shortage.refresh()
            deadlines = (slot.snapshot.deadline for slot in self._working())
            due = min((at for at in deadlines if at is not None), default=at + beat_s)
            wait_s = min(beat_s, self._poll_s(), max(due - at, 0.01))
            self._extend_stop()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.changed.wait(), wait_s)
        self._shared.tasks.cancel()
        self._shared.cards.stop()
        try:
            for slot in self.slots.values():
                await asyncio.to_thread(slot.failures.recorder.flush, RECORD_S)
            await asyncio.to_thread(self._shared.history.close, RECORD_S)
        except RuntimeError as problem:
            if not limits.limit_reached(problem):
                raise
        if self._fault is not None:
            raise self._fault

    def admits(self, name: str, pid: int) -> bool:
        """Whether a process may use our socket `name`.

        Page and gateway have their own sockets; engines, and programs from their environments, have
        none.
        """
        server = {PAGE.name: self.page, GATEWAY.name: self.gateway}.get(name)
        described = server.describe() if server else None
        return (described is not None and pid == described["pid"]) or not processes.descends(pid)

    def _poll_s(self) -> float:
        """Seconds between polls: the least patient slot needs several before it sends a test."""
        limits = [slot.config.watch.hang_s for slot in self._working()]
        return min([POLL_S, *map(reading_interval_s, limits)])

    def _working(self) -> list[Slot]:
        """Slots that have not quit."""
        return [slot for slot in self.slots.values() if not slot.quit]

    def _poll(self) -> None:
        """Poll what is shared, and each engine."""
        shared = self._shared
        shared.kernel.read()
        files = [slot.run.file for slot in self.slots.values()]
        shared.attempt("check whether the disks are writable", shared.unwritten.check(files))
        for name, slot in self.slots.items():
            slot.poll()
            serves = slot.snapshot.state is State.SERVING
            shared.history.take(name, slot.figures.track, serves)
        shared.history.take_cards(shared.cards.latest.values())
        shared.history.turn()

    def _extend_stop(self) -> None:
        """Make systemd wait for engines that are still ending."""
        ending = [
            slot.snapshot.deadline
            for slot in self.slots.values()
            if slot.snapshot.state is State.STOPPING and slot.snapshot.deadline is not None
        ]
        if not ending:
            return
        within_s = max(ending) - now() + MAX_TICK_S
        if any(slot.snapshot.quitting for slot in self.slots.values()):
            self.notifier.stopping(within_s)
        else:
            self.notifier.extend(within_s)

    def give_up(self, fault: BaseException) -> None:
        """Exit after a bug in the daemon: systemd starts a new one, which ends our processes."""
        self._fault, self._quit = fault, True
        self._shared.changes.wake()

    async def kill_engines(self, limit_s: float) -> list[Process]:
        """Send SIGKILL to the engines as far as our rights permit; return the processes left after
        `limit_s`.
        """
        living = [slot.run.child for slot in self.slots.values() if slot.run.child is not None]
        left = await asyncio.gather(*(child.kill(limit_s) for child in living))
        return [process for processes in left for process in processes]

    # -- operator requests -------------------------------------------------------------------

    def apply_operator_event(self, event: LifecycleEvent) -> None:
        """Apply an operator's event to every slot."""
        for slot in self.slots.values():
            slot.apply_operator_event(event)

    def reconfigure(self, config: Config) -> list[str]:
        """Apply another configuration; return the changed keys that need a restart of the
        daemon."""
        self.config = config
        names = list(unapplied(self._begun_with, config))
        if names:
            self.notice("noticed", f"not applied until caovan restarts: {', '.join(names)}")
        self.settle_servers()
        for name, slot_config in slots_of(config).items():
            if name in self.slots:
                self.slots[name].reconfigure(slot_config)
        return names

    def settle_servers(self) -> None:
        """Start, move or stop page and gateway as configured."""
        section = self.config.page
        try:
            token: str | None = config_file.page_token(self.config)
        except ConfigError:
            token = None  # its process also reads the file, and prints the error
        words = ("--token-file", section.token_file) if section.token_file else ()
        places, gateway = self._shared.directories, self.config.gateway
        reach = server_confinement(self.config, places, section.token_file)
        self.page.settle(section.listen, words, token, reach)
        most_mib = self._begun_with.gateway.max_body_mib
        words, reach = ("--max-body-mib", str(most_mib)), server_confinement(self.config, places)
        self.gateway.settle(gateway.listen, words, confinement=reach)

    def close_servers(self) -> None:
        """Stop page and gateway."""
        self.page.close()
        self.gateway.close()
        with limits.suppress_absent():
            self.keys.save()

    # -- output for people -------------------------------------------------------------------

    @property
    def changed(self) -> asyncio.Event:
        """Set when a slot has changed."""
        return self._shared.changes.event

    @property
    def one_line(self) -> str:
        """The state of all slots, for `systemctl status`."""
        return status.one_line_of_all({n: slot.snapshot for n, slot in self.slots.items()})

    @property
    def worst(self) -> Slot:
        """The slot in the worst state."""
        return self.slots[self._worst_first()[0]]

    def _worst_first(self) -> list[str]:
        return status.worst_first({name: slot.snapshot for name, slot in self.slots.items()})

    def describe(self, name: str = "") -> dict[str, Any]:
        """The status document of the slot `name`, or of the one in the worst state, with all slots.

        With a single slot, both are the same.
        """
        names = [name] if name else self._worst_first()
        documents = {n: self.slots[n].describe() for n in names}
        worst = self.slots[names[0]]
        slots = [status.entry(n, document) for n, document in documents.items()]
        first, page, gateway = documents[names[0]], self.page, self.gateway
        warnings = [*first["warnings"], *filter(None, [page.problem, gateway.problem])]
        counts = {**worst.clients.counts, "totals": worst.clients.totals}
        served = gateway.describe()
        more = {
            "page": page.describe(),
            "gateway": {**served, **counts} if served else None,
            "cluster": worst.part.summary(),
            "slots": slots,
        }
        return {**first, "warnings": warnings, **more}

    def notice(self, kind: str, text: str, **data: Any) -> None:
        """Publish an event and log it."""
        seq = self.notices[-1].seq + 1 if self.notices else 1
        entry = Notice(seq, wall_clock.now(), kind, text, data)
        self.notices.append(entry)
        for listener in self.listeners:
            listener(entry)
        (self._log.error if kind == "failure" else self._log.info)(text)

    def _notice_of(self, name: str, kind: str, text: str, **data: Any) -> None:
        """Publish an event of one slot."""
        self.notice(kind, self._shared.label(name) + text, slot=name, **data)

    def _show_status(self) -> None:
        line = self.one_line
        if line != self._shown:
            self._shown = line
            self.notifier.status(line)
