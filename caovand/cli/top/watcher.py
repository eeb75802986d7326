"""Poll the daemon for the live screen's content, across its restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from caovand.adapters.system import processes, usage
from caovand.adapters.system.usage import ProcessUsage
from caovand.cli import incidents, requests
from caovand.cli.common.client import DaemonClient
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.reach import user_name
from caovand.cli.top.view import CardProcess, EventLine, ScreenPage, View
from caovand.core import secrets
from caovand.core.figures.memory import cards_with_foreign_pids
from caovand.core.reporting.wire import WireError

ANSWER_S = 3.0
MAX_EVENT_LINES = 100
LOG_LINES = 200
NOTE_S = 10.0


class Watcher:
    """Everything seen so far; each round of requests makes a View."""

    def __init__(self, client: DaemonClient) -> None:
        self._client = client
        self._status: Mapping[str, Any] = {}
        self._recent: Mapping[str, Any] = {}
        self._event_lines: tuple[EventLine, ...] = ()
        self._seq = 0
        self._work: Mapping[int, ProcessUsage] = {}
        self._lost_at: float | None = None
        self._note, self._noted_at = "", 0.0
        self._lacks = ""

    def first(self) -> View:
        """The first round; raises CommandError if the daemon cannot be reached."""
        return self._round(ScreenPage.MAIN)

    def poll(self, page: ScreenPage) -> View:
        """One more round, whether or not the daemon answers."""
        try:
            return self._round(page)
        except (CommandError, WireError) as problem:
            if self._lost_at is None:
                self._lost_at = time.monotonic()
            return View(
                moment=_moment(time.time()),
                status=self._status,
                recent={},
                event_lines=self._event_lines,
                lost=problem.message,
                lost_s=time.monotonic() - self._lost_at,
            )

    def choose(self, mode: str) -> None:
        """Choose a mode; the note of the next views reports the result."""
        try:
            answer = self._client.ask("mode", answer_s=ANSWER_S, mode=mode)
        except (CommandError, WireError) as problem:
            self._set_note(problem.message)
        else:
            by = f"; {answer['overruled']} decides the MTP depth" if answer["overruled"] else ""
            self._set_note(f"mode {answer['mode']}{by}")

    def _set_note(self, text: str) -> None:
        self._note, self._noted_at = text, time.monotonic()

    def _round(self, page: ScreenPage) -> View:
        now, self._lacks = self._ask("status"), ""
        if time.monotonic() - self._noted_at > NOTE_S:
            self._note = ""
        pid = now["daemon"]["pid"]
        if self._status and pid != self._status["daemon"]["pid"]:
            text = f"caovand was restarted: pid {pid}, previously {self._status['daemon']['pid']}"
            self._seq = 0
            self._event_lines += (EventLine(_moment(time.time()), "daemon", text),)
        self._status, self._lost_at = now, None
        self._recent = self._ask_quietly("recent") or {}
        self._follow()
        before, self._work = self._work, work_on_cards(now)
        return View(
            moment=_moment(time.time()),
            status=now,
            recent=self._recent,
            processes=tuple(on_cards(now, self._work, before)),
            event_lines=self._event_lines,
            page=page,
            body=tuple(self._body(page)),
            note=self._note or self._lacks,
        )

    def _follow(self) -> None:
        """Fetch all new events: a reply holds as many as fit, oldest first."""
        while answer := self._ask_quietly("events", since=self._seq):
            new = [entry for entry in answer["events"] if entry["seq"] > self._seq]
            if not new:
                return
            self._seq = new[-1]["seq"]
            events = [
                EventLine(_moment(event["at"]), event["kind"], event["text"]) for event in new
            ]
            self._event_lines = (*self._event_lines, *events)[-MAX_EVENT_LINES:]

    def _body(self, page: ScreenPage) -> Iterator[str]:
        if page is ScreenPage.LOG:
            yield from self._log()
        elif page is ScreenPage.INCIDENTS and (answer := self._ask_quietly("incidents")):
            yield from incidents.lines(answer["incidents"])
        elif page is ScreenPage.REQUESTS and (answer := self._ask_quietly("requests")):
            yield from requests.lines(answer["requests"])

    def _log(self) -> Iterator[str]:
        """The engine's latest lines; a reply holds as many as fit, oldest first."""
        answer = self._ask_quietly("logs", lines=LOG_LINES)
        if answer is not None and not answer["lines"]:
            yield "the engine has not printed anything yet"
        end = answer["end"] if answer else 0
        while answer:
            yield from answer["lines"]
            more = answer["lines"] and answer["last"] < end
            answer = self._ask_quietly("logs", since=answer["last"]) if more else None

    def _ask(self, op: str, **args: Any) -> Mapping[str, Any]:
        return self._client.ask(op, answer_s=ANSWER_S, **args)

    def _ask_quietly(self, op: str, **args: Any) -> Mapping[str, Any] | None:
        """A reply that the screen can do without; a refusal is noted."""
        try:
            return self._ask(op, **args)
        except CommandError as problem:
            if problem.status is Exit.NOT_REACHABLE:
                raise
            self._lacks = self._lacks or f"no {op}: {problem.message}"
            return None


def work_on_cards(answer: Mapping[str, Any]) -> Mapping[int, ProcessUsage]:
    """Resource usage of the processes on the cards, by pid."""
    pids = {pid for gpu in answer["gpus"] for pid, _ in gpu.get("users", ())}
    usages = {pid: usage.process_usage(pid) for pid in pids}
    return {pid: work for pid, work in usages.items() if work is not None}


def on_cards(
    answer: Mapping[str, Any], work: Mapping[int, ProcessUsage], before: Mapping[int, ProcessUsage]
) -> Iterator[CardProcess]:
    """The processes on the cards, with their usage since the last round; invisible ones have no
    name."""
    memory = (answer.get("figures") or {}).get("memory", ())
    unknown = cards_with_foreign_pids(memory, serves=bool(answer["served"]))
    for gpu in answer["gpus"]:
        for pid, mib in gpu.get("users", ()):
            process = None if gpu["index"] in unknown else processes.read(pid)
            if process is None or pid not in work:
                yield CardProcess(gpu["index"], pid, mib, "", "")
                continue
            usage = work[pid]
            yield CardProcess(
                gpu["index"],
                pid,
                mib,
                user_name(process.uid),
                secrets.hide(_without_folder(processes.command_of(pid)) or f"[{process.name}]"),
                usage.cores_since(before.get(pid)),
                usage.resident_mib,
                usage.at - usage.began,
            )


def _without_folder(command: str) -> str:
    """A command line without its program's folder, to save space."""
    program, space, rest = command.partition(" ")
    return f"{program.rpartition('/')[2]}{space}{rest}"


def _moment(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
