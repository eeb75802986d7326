"""What each request on the control sockets does: one function an op, in one table."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from caovand import __version__
from caovand.adapters import config_file
from caovand.adapters.incidents import REPORT, NoIncident
from caovand.core import events, flags, secrets, status
from caovand.core.config import MODES, ConfigError, Mode
from caovand.core.machine import State
from caovand.core.speculation import AUTO_SPEC, overruling
from caovand.core.wire import Reply, Request, notice_fields
from caovand.supervisor import Supervisor

LONGEST_WAIT_S = 86400.0
LONGEST_OPEN_WAIT_S = 60.0  # of a request from the socket that is open to all
LOG_BYTES = 48 * 1024
PIECE_BYTES = 36 * 1024  # of a file: 48 KiB in base64

Result = Mapping[str, Any]
Verb = Callable[[Supervisor, Mapping[str, Any]], Awaitable[Result]]


class VerbError(Exception):
    """A request that cannot be carried out, as code, message and hint."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


async def answer(supervisor: Supervisor, request: Request) -> Reply:
    """Carry out a request; a reply whatever happens."""
    verb = VERBS.get(request.op)
    if verb is None:
        return Reply(
            request.id,
            code="unknown-op",
            message=f'cannot do "{request.op[:64]}": this daemon ({__version__}) does not know it',
            hint="caovanctl and caovand must be of one version",
        )
    unknown = set(request.args) - ARGUMENTS[request.op]
    if unknown:
        text = f'cannot do "{request.op}": unknown argument "{sorted(unknown)[0][:64]}"'
        return Reply(request.id, code="bad-argument", message=text)
    try:
        if request.op == "wait" and not request.trusted:
            _check_wait(request.args, LONGEST_OPEN_WAIT_S)
        result = await verb(supervisor, request.args)
        if not request.trusted and "last_failure" in result:
            result = status.public(result)
        return Reply(request.id, result=result)
    except VerbError as problem:
        return Reply(request.id, None, problem.code, problem.message, problem.hint)
    except ConfigError as problem:
        hint = "nothing was changed; mend the file and reload again"
        return Reply(request.id, None, "bad-config", str(problem), hint)
    except OSError as problem:
        text = f"cannot do {request.op}: {problem}"
        return Reply(request.id, None, "failed", text, "look for space and rights on that disk")


def _argument(args: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = args.get(name, default)
    if kind is float and isinstance(value, int) and abs(value) < 1 << 53:
        value = float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(args.get(name), bool)):
        raise VerbError("bad-argument", f"argument {name} must be of type {kind.__name__}")
    return value


async def _status(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    return supervisor.describe()


async def _version(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    return {"version": __version__}


async def _plan(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    plan = supervisor.snapshot.plan
    if plan is None:
        raise VerbError("no-plan", "cannot show a plan: none was made yet", "caovanctl status")
    return {
        "model": plan.model,
        "settings": {name: vars(setting) for name, setting in plan.settings.items()},
        "env": {
            name: {**vars(setting), "value": secrets.shown_value(name, setting.value)}
            for name, setting in plan.env.items()
        },
        "extra_args": list(flags.redact(plan.extra_args)),
        "rungs": list(plan.rungs),
        "warnings": list(plan.warnings),
        "argv": list(supervisor.argv),
    }


async def _mode(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    if "mode" in args:
        mode = args["mode"]
        if mode != "default" and mode not in MODES:
            known = ", ".join(MODES)
            raise VerbError("bad-argument", f"cannot use mode {mode!r}: it must be one of {known}")
        chosen = None if mode == "default" else cast(Mode, mode)
        supervisor.choose_mode(chosen, defer=_argument(args, "defer", bool, False))
    mode, origin = supervisor.mode
    overruled = overruling(supervisor.config, supervisor.environ.get(AUTO_SPEC))
    return {"mode": mode, "origin": origin, "overruled": overruled, **_outcome(supervisor)}


async def _reload(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    supervisor.notifier.reloading()
    try:
        config = config_file.load(supervisor.config_path)
        config_file.check_secret(config, supervisor.config_path)
        supervisor.reconfigure(config)
    except ConfigError as problem:
        supervisor.notice("failure", f"the configuration was not reloaded: {problem}")
        raise
    finally:
        supervisor.notifier.ready(status.one_line(supervisor.snapshot))
    supervisor.notice("reload", f"{supervisor.config_path} was read again")
    return _outcome(supervisor)


async def _start(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    supervisor.command(events.Start(time.monotonic()))
    return _outcome(supervisor)


async def _stop(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    supervisor.command(events.Stop(time.monotonic()))
    return _outcome(supervisor)


async def _restart(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    supervisor.command(events.Restart(time.monotonic()))
    return _outcome(supervisor)


async def _reset(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    supervisor.forget()
    return _outcome(supervisor)


async def _retry(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    if _argument(args, "full", bool, False):
        supervisor.retry_full()
    else:
        supervisor.command(events.Start(time.monotonic()))
    return _outcome(supervisor)


def _outcome(supervisor: Supervisor) -> dict[str, Any]:
    snapshot = supervisor.snapshot
    return {"state": snapshot.state.value, "settled": status.is_settled(snapshot)}


async def _wait(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    """Answer when the state is `until` (serving, settled, stopped) or after `timeout_s`."""
    until = _argument(args, "until", str, "serving")
    if until not in ("serving", "settled", "stopped"):
        raise VerbError("bad-argument", f"cannot wait until {until!r}: serving, settled or stopped")
    timeout_s = _check_wait(args, LONGEST_WAIT_S)
    deadline = time.monotonic() + timeout_s

    def reached() -> bool:
        snapshot = supervisor.snapshot
        if until == "settled":
            return status.is_settled(snapshot)
        wanted = State.SERVING if until == "serving" else State.STOPPED
        return snapshot.state is wanted and not snapshot.replanning

    while not (done := reached()):
        left_s = deadline - time.monotonic()
        # Out of FAILED nothing comes by itself.
        if left_s <= 0 or supervisor.snapshot.state is State.FAILED:
            break
        try:
            await asyncio.wait_for(supervisor.changed.wait(), left_s)
        except asyncio.TimeoutError:
            continue
    return {"reached": done, **supervisor.describe()}


def _check_wait(args: Mapping[str, Any], longest_s: float) -> float:
    timeout_s: float = _argument(args, "timeout_s", float, LONGEST_OPEN_WAIT_S)
    if not 0 <= timeout_s <= longest_s:
        raise VerbError("bad-argument", f"cannot wait {timeout_s} s: from 0 to {longest_s:.0f}")
    return timeout_s


async def _logs(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    """The latest `lines` lines, or those after line number `since`, as many as a frame takes.

    `end` is the number of the latest line when the request came.
    """
    end = supervisor.ring.count
    if "since" in args:
        since = _argument(args, "since", int, 0)
    else:
        since = end - max(_argument(args, "lines", int, 100), 0)
    lines, last = supervisor.ring.since(max(since, 0), LOG_BYTES)
    return {"lines": lines, "last": last, "more": last < supervisor.ring.count, "end": end}


async def _events(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    """The notices after sequence number `since`, as many as a frame takes.

    A number that was not reached yet is of an earlier daemon: everything is new then.
    """
    since = _argument(args, "since", int, 0)
    if supervisor.notices and since > supervisor.notices[-1].seq:
        since = 0
    chosen: list[dict[str, Any]] = []
    size = 0
    for notice in supervisor.notices:
        if notice.seq > since:
            entry = notice_fields(notice)
            size += len(str(entry)) * 2
            if size > LOG_BYTES and not chosen:  # who asks again must get on
                entry = {**entry, "text": entry["text"][:1000], "data": {}}
            elif size > LOG_BYTES:
                break
            chosen.append(entry)
    return {"events": chosen}


async def _incidents(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    return {"incidents": await asyncio.to_thread(supervisor.incidents.listed)}


async def _incident(supervisor: Supervisor, args: Mapping[str, Any]) -> Result:
    """The names of an incident's files, and a piece of one of them from `offset` on."""
    number = _argument(args, "number", int, 0)
    name = _argument(args, "file", str, REPORT)
    offset = max(_argument(args, "offset", int, 0), 0)
    store = supervisor.incidents
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


VERBS: Mapping[str, Verb] = {
    "status": _status,
    "version": _version,
    "plan": _plan,
    "mode": _mode,
    "reload": _reload,
    "start": _start,
    "stop": _stop,
    "restart": _restart,
    "reset": _reset,
    "retry": _retry,
    "wait": _wait,
    "logs": _logs,
    "events": _events,
    "incidents": _incidents,
    "incident": _incident,
}
ARGUMENTS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(VERBS, frozenset()),
    "mode": frozenset({"mode", "defer"}),
    "wait": frozenset({"until", "timeout_s"}),
    "logs": frozenset({"lines", "since"}),
    "events": frozenset({"since"}),
    "retry": frozenset({"full"}),
    "incident": frozenset({"number", "file", "offset"}),
}
