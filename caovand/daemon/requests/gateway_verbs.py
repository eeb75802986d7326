"""Verbs of the gateway's process, and verbs for its clients' keys."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from caovand.core.gateway.record import Totals, is_row
from caovand.core.printable import one_line
from caovand.core.problem import ProblemError
from caovand.core.reporting.wire import Request
from caovand.daemon.keys import requested_key
from caovand.daemon.requests.arguments import Result, VerbError, argument
from caovand.daemon.slot import Slot
from caovand.daemon.supervisor import Supervisor

MAX_WAIT_S = 60.0


async def gateway(slot: Slot, args: Mapping[str, Any]) -> Result:
    """Return the engine's state for the gateway once it is newer than `since`, with the API key."""
    since = argument(args, "since", int, 0)
    wait_s: float = argument(args, "wait_s", float, 0.0)
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise VerbError("bad-argument", f"cannot wait {wait_s} s: from 0 to {MAX_WAIT_S}")
    return await slot.clients.next(since, wait_s)


async def report(slot: Slot, args: Mapping[str, Any]) -> Result:
    """Store the gateway's counts, and the requests that it refuses because they crash engines."""
    counts = {name: argument(args, name, int, 0) for name in ("waiting", "at_engine")}
    endings = [one_line(str(e)) for e in argument(args, "endings", list, [])]
    totals = argument(args, "totals", dict, Totals().document())
    try:
        slot.clients.report(argument(args, "seq", int, 0), counts, totals, endings)
    except (TypeError, KeyError, AttributeError) as problem:
        raise VerbError("bad-argument", "argument totals must be request totals") from problem
    return {}


async def ended(slot: Slot, args: Mapping[str, Any]) -> Result:
    """Take the records of finished requests."""
    rows = argument(args, "requests", list, [])
    if not all(map(is_row, rows)):
        raise VerbError("bad-argument", "argument requests must be request records")
    slot.clients.requests += rows
    return {}


async def requests(slot: Slot, args: Mapping[str, Any]) -> Result:
    """The latest finished requests at the gateway, oldest first."""
    return {"requests": [*slot.clients.requests]}


async def used(supervisor: Supervisor, request: Request) -> Result:
    """Take the keys' usage since the gateway's last report."""
    try:
        is_time = supervisor.keys.take(argument(request.args, "used", list, []))
    except (TypeError, ValueError) as problem:
        raise VerbError("bad-argument", "argument used must be usage rows") from problem
    if is_time:
        await asyncio.to_thread(supervisor.keys.save)
    return {}


async def keys(supervisor: Supervisor, request: Request) -> Result:
    """The clients' keys, and the daily use of each."""
    return supervisor.keys.describe()


async def key_add(supervisor: Supervisor, request: Request) -> Result:
    """Create a key; only this response contains its secret."""
    try:
        return {"key": supervisor.keys.add(requested_key(request.args))}
    except ProblemError as error:
        raise VerbError("bad-argument", error.problem.message, error.problem.remedy) from error


async def key_revoke(supervisor: Supervisor, request: Request) -> Result:
    """Revoke a key at once; return the remaining keys."""
    try:
        supervisor.keys.revoke(argument(request.args, "name", str, ""))
    except ProblemError as error:
        raise VerbError("bad-argument", error.problem.message, error.problem.remedy) from error
    return supervisor.keys.describe()
