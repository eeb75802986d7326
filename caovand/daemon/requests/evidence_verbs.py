"""Verbs that read stored data: log, events, incidents, and metrics over time."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

from caovand.adapters.incidents import NoIncident
from caovand.core.problem import ProblemError
from caovand.core.reporting.incident_text import REPORT
from caovand.core.reporting.wire import Request, notice_fields
from caovand.core.units import DAY_S
from caovand.daemon.requests.arguments import Result, VerbError, argument
from caovand.daemon.slot import Slot
from caovand.daemon.supervisor import Supervisor

LOG_BYTES = 48 * 1024
MAX_POINTS = 1000
PIECE_BYTES = 36 * 1024  # per piece of a file: 48 KiB in base64


async def logs(slot: Slot, args: Mapping[str, Any]) -> Result:
    """Return the latest `lines` lines, or those after line number `since`, as many as fit into a
    frame.

    `end` is the number of the latest line at the time of the request.
    """
    end = slot.run.ring.count
    if "since" in args:
        since = argument(args, "since", int, 0)
    else:
        since = end - max(argument(args, "lines", int, 100), 0)
    lines, last = slot.run.ring.since(max(since, 0), LOG_BYTES)
    return {"lines": lines, "last": last, "more": last < slot.run.ring.count, "end": end}


async def events(supervisor: Supervisor, request: Request) -> Result:
    """Return the notices after sequence number `since`, as many as fit into a frame.

    A number not reached yet comes from an earlier daemon: then every notice is new.
    """
    since = argument(request.args, "since", int, 0)
    if supervisor.notices and since > supervisor.notices[-1].seq:
        since = 0
    chosen: list[dict[str, Any]] = []
    size = 0
    for notice in supervisor.notices:
        if notice.seq > since:
            entry = notice_fields(notice)
            size += len(str(entry)) * 2
            if size > LOG_BYTES and not chosen:  # a polling client must make progress
                entry = {**entry, "text": entry["text"][:1000], "data": {}}
            elif size > LOG_BYTES:
                break
            chosen.append(entry)
    return {"events": chosen}


async def incidents(slot: Slot, args: Mapping[str, Any]) -> Result:
    """List the incidents with their causes."""
    return {"incidents": await asyncio.to_thread(slot.incidents.listed)}


async def incident(slot: Slot, args: Mapping[str, Any]) -> Result:
    """Return the names of an incident's files, and a piece of one file from `offset` on."""
    number = argument(args, "number", int, 0)
    name = argument(args, "file", str, REPORT)
    offset = max(argument(args, "offset", int, 0), 0)
    store = slot.incidents
    try:
        files = await asyncio.to_thread(store.files, number)
        data = await asyncio.to_thread(store.read, number, name, offset, PIECE_BYTES)
    except NoIncident as problem:
        raise VerbError("no-incident", str(problem), "caovanctl incidents") from problem
    return {
        "files": files,
        "data": base64.b64encode(data).decode("ascii"),
        "next": offset + len(data) if offset + len(data) < files[name] else None,
    }


async def recent(slot: Slot, args: Mapping[str, Any]) -> Result:
    """Return each scrape and each round of card samples of the last five minutes."""
    return slot.recent()


async def history(slot: Slot, args: Mapping[str, Any]) -> Result:
    """Return the `seconds` before `until` (Unix time) or now, in about `points` steps at most.

    The number of steps is limited by a frame: request shorter times for finer steps.
    """
    seconds = argument(args, "seconds", float, float(DAY_S))
    points = argument(args, "points", int, MAX_POINTS)
    until = argument(args, "until", float, 0.0) if "until" in args else None
    if not 60 <= seconds <= 366 * DAY_S:
        text = f"cannot show the last {seconds:g} s: from 60 to {366 * DAY_S:.0f}"
        raise VerbError("bad-argument", text)
    if until is not None and not 0 <= until < 1e11:
        raise VerbError("bad-argument", f"cannot show a history until {until:g}")
    if not 1 <= points <= MAX_POINTS:
        raise VerbError("bad-argument", f"cannot show {points} points: from 1 to {MAX_POINTS}")
    try:
        return await slot.history.read(slot.name, seconds, points, until)
    except ProblemError as error:
        problem = error.problem
        raise VerbError("no-history", problem.message, problem.remedy) from error
