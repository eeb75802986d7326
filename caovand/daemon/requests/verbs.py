"""Handlers for the requests of the control sockets, one function for each op, in one table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, cast

from caovand import __version__
from caovand.adapters.files import config_file
from caovand.core import secrets
from caovand.core.config.key import ConfigError
from caovand.core.config.schema import MODES, Mode
from caovand.core.gateway.keys import ClientKey
from caovand.core.lifecycle import events
from caovand.core.lifecycle.state import State
from caovand.core.reporting import status
from caovand.core.reporting.wire import Reply, Request
from caovand.daemon.loop import Supervisor
from caovand.daemon.requests import evidence_verbs, gateway_verbs
from caovand.daemon.requests.arguments import Result, VerbError, argument
from caovand.daemon.slot import Slot

MAX_WAIT_S = 86400.0
MAX_OPEN_WAIT_S = 60.0  # for a request from the socket that everybody may use

OfDaemon = Callable[[Supervisor, Request], Awaitable[Result]]
OfSlot = Callable[[Slot, Mapping[str, Any]], Awaitable[Result]]


async def answer(supervisor: Supervisor, request: Request) -> Reply:
    """Carry out a request; every outcome is a Reply."""
    if request.op not in VERBS:
        return Reply(
            request.id,
            code="unknown-op",
            message=f'cannot do "{request.op[:64]}": this daemon ({__version__}) does not know it',
            hint="caovanctl and caovand must have the same version",
        )
    unknown = set(request.args) - ARGUMENTS[request.op]
    if unknown:
        text = f'cannot do "{request.op}": unknown argument "{sorted(unknown)[0][:64]}"'
        return Reply(request.id, code="bad-argument", message=text)
    try:
        if request.op == "wait" and not request.trusted:
            _check_wait(request.args, MAX_OPEN_WAIT_S)
        result = await _carry_out(supervisor, request)
        if not request.trusted and "last_failure" in result:
            result = status.public(result)
        return Reply(request.id, result=result)
    except VerbError as problem:
        return Reply(request.id, None, problem.code, problem.message, problem.hint)
    except ConfigError as problem:
        hint = "no change made; correct the file and reload again"
        return Reply(request.id, None, "bad-config", str(problem), hint)
    except OSError as problem:
        text = f"cannot do {request.op}: {problem}"
        return Reply(request.id, None, "failed", text, "check space and permissions on that disk")


async def _carry_out(supervisor: Supervisor, request: Request) -> Result:
    _check_model(request.op, request.model, supervisor.slots)
    if request.op in OF_DAEMON:
        return await OF_DAEMON[request.op](supervisor, request)
    slot = supervisor.slots[request.model or next(iter(supervisor.slots))]
    return await OF_SLOT[request.op](slot, request.args)


def _check_model(op: str, name: str, slots: Collection[str]) -> None:
    """Raise VerbError if a request does not identify its model."""
    known = f"name one of: {', '.join(slots)}"
    if name and op in OF_DAEMON and op != "status":
        text = f'cannot do "{op}" for one model: it concerns the whole daemon'
        raise VerbError("bad-argument", text, "leave the model out")
    if name and name not in slots:
        text = f'cannot do "{op}": there is no model "{name[:64]}"'
        raise VerbError("unknown-model", text, known)
    if not name and op in OF_SLOT and len(slots) > 1:
        text = f'cannot do "{op}": it does not name one of the {len(slots)} models'
        raise VerbError("which-model", text, known)


def _not_on_a_worker(slot: Slot, doing: str, instead: str) -> None:
    """Raise VerbError on a worker, where the head decides and the request would have no effect."""
    if head := slot.part.planned_by:
        fact = f"this machine is a worker, and the head at {head} plans and answers clients"
        raise VerbError("on-the-head", f"cannot {doing}: {fact}", f"{instead} on the head")


async def _status(supervisor: Supervisor, request: Request) -> Result:
    return supervisor.describe(request.model)


async def _version(supervisor: Supervisor, request: Request) -> Result:
    return {"version": __version__}


async def _plan(slot: Slot, args: Mapping[str, Any]) -> Result:
    plan = slot.snapshot.plan
    if plan is None:
        raise VerbError("no-plan", "cannot show a plan: there is none yet", "caovanctl status")
    return {
        "model": plan.model,
        "task": plan.task,
        "engine": slot.engine.name,
        "fingerprint": plan.identity,
        "context": slot.engine.planning.context(plan),
        "settings": {name: vars(setting) for name, setting in plan.settings.items()},
        "env": {
            name: {**vars(setting), "value": secrets.shown_value(name, setting.value)}
            for name, setting in plan.env.items()
        },
        "extra_args": list(slot.engine.arguments.shown(plan.extra_args)),
        "rungs": list(plan.rungs),
        "warnings": list(plan.warnings),
        "argv": list(slot.run.argv),
    }


async def _mode(slot: Slot, args: Mapping[str, Any]) -> Result:
    if "mode" in args:
        mode = args["mode"]
        if mode != "default" and mode not in MODES:
            known = ", ".join(MODES)
            raise VerbError("bad-argument", f"cannot use mode {mode!r}: it must be one of {known}")
        words = "--default" if mode == "default" else mode
        _not_on_a_worker(slot, "choose a mode", f"run `caovanctl mode {words}`")
        chosen = None if mode == "default" else cast(Mode, mode)
        slot.choose_mode(chosen, defer=argument(args, "defer", bool, False))
    mode, origin = slot.mode
    overruled = slot.engine.planning.overruling(slot.config, slot.environ)
    if slot.part.planned_by:
        overruled = f"the head at {slot.part.planned_by}"
    return {"mode": mode, "origin": origin, "overruled": overruled, **_outcome(slot)}


async def _reload(supervisor: Supervisor, request: Request) -> Result:
    supervisor.notifier.reloading()
    try:
        config = config_file.load(supervisor.config_path)
        config_file.check_secrets(config, supervisor.config_path)
        unapplied = supervisor.reconfigure(config)
    except ConfigError as problem:
        supervisor.notice("failure", f"cannot reload the configuration: {problem}")
        raise
    finally:
        supervisor.notifier.ready(supervisor.one_line)
    supervisor.notice("reload", f"reloaded {supervisor.config_path}")
    return {**_outcome(supervisor.worst), "unapplied": unapplied}


async def _start(slot: Slot, args: Mapping[str, Any]) -> Result:
    slot.apply_operator_event(events.Start(at=time.monotonic()))
    return _outcome(slot)


async def _stop(slot: Slot, args: Mapping[str, Any]) -> Result:
    slot.apply_operator_event(events.Stop(at=time.monotonic()))
    return _outcome(slot)


async def _restart(slot: Slot, args: Mapping[str, Any]) -> Result:
    slot.apply_operator_event(events.Restart(at=time.monotonic()))
    return _outcome(slot)


async def _reset(slot: Slot, args: Mapping[str, Any]) -> Result:
    _not_on_a_worker(slot, "discard the degraded plan", "run `caovanctl reset`")
    slot.forget()
    return _outcome(slot)


async def _retry(slot: Slot, args: Mapping[str, Any]) -> Result:
    if argument(args, "full", bool, False):
        _not_on_a_worker(slot, "try the full plan", "run `caovanctl retry --full`")
        state, plan = slot.snapshot.state, slot.snapshot.plan
        if state is State.SERVING and plan is not None and not plan.degraded:
            text = (
                "nothing to do: the full plan is already serving; `caovanctl restart` restarts it"
            )
            return {**_outcome(slot), "note": text}
        slot.retry_full()
    else:
        slot.apply_operator_event(events.Start(at=time.monotonic()))
    return _outcome(slot)


def _outcome(slot: Slot) -> dict[str, Any]:
    snapshot = slot.snapshot
    return {"state": snapshot.state.value, "settled": status.is_settled(snapshot)}


async def _wait(slot: Slot, args: Mapping[str, Any]) -> Result:
    """Reply when the state is `until` (serving, settled, stopped) or after `timeout_s`."""
    until = argument(args, "until", str, "serving")
    if until not in ("serving", "settled", "stopped"):
        raise VerbError("bad-argument", f"cannot wait until {until!r}: serving, settled or stopped")
    timeout_s = _check_wait(args, MAX_WAIT_S)
    deadline = time.monotonic() + timeout_s

    def reached() -> bool:
        snapshot = slot.snapshot
        if until == "settled":
            return status.is_settled(snapshot)
        wanted = State.SERVING if until == "serving" else State.STOPPED
        return snapshot.state is wanted and not snapshot.replanning

    while not (done := reached()):
        left_s = deadline - time.monotonic()
        # Nothing leaves FAILED by itself.
        if left_s <= 0 or slot.snapshot.state is State.FAILED:
            break
        try:
            await asyncio.wait_for(slot.changed.wait(), left_s)
        except asyncio.TimeoutError:
            continue
    return {"reached": done, **slot.describe()}


def _check_wait(args: Mapping[str, Any], longest_s: float) -> float:
    timeout_s: float = argument(args, "timeout_s", float, MAX_OPEN_WAIT_S)
    if not 0 <= timeout_s <= longest_s:
        raise VerbError("bad-argument", f"cannot wait {timeout_s} s: from 0 to {longest_s:.0f}")
    return timeout_s


async def _endpoint(slot: Slot, args: Mapping[str, Any]) -> Result:
    """Return the endpoint for the page's chats, with the API key."""
    _not_on_a_worker(slot, "send a chat", "use the page")
    plan, endpoint = slot.snapshot.plan, slot.run.endpoint
    if slot.snapshot.state is not State.SERVING or plan is None or endpoint is None:
        text = f"cannot send a chat: the engine is {slot.snapshot.state.value}"
        raise VerbError("not-serving", text, "wait until it serves: caovanctl wait")
    return {
        "host": endpoint.address,
        "port": endpoint.port,
        "tls": endpoint.tls,
        "key": endpoint.key,
        "path": slot.engine.api.chat,
        "model": plan.served_name,
    }


async def _cluster(slot: Slot, args: Mapping[str, Any]) -> Result:
    if argument(args, "probe", bool, False):
        await slot.part.check_links()
    return slot.part.describe()


OF_DAEMON: Mapping[str, OfDaemon] = {
    "status": _status,
    "version": _version,
    "reload": _reload,
    "events": evidence_verbs.events,
    "gateway_used": gateway_verbs.used,
    "keys": gateway_verbs.keys,
    "key_add": gateway_verbs.key_add,
    "key_revoke": gateway_verbs.key_revoke,
}
OF_SLOT: Mapping[str, OfSlot] = {
    "plan": _plan,
    "mode": _mode,
    "start": _start,
    "stop": _stop,
    "restart": _restart,
    "reset": _reset,
    "retry": _retry,
    "wait": _wait,
    "logs": evidence_verbs.logs,
    "incidents": evidence_verbs.incidents,
    "incident": evidence_verbs.incident,
    "recent": evidence_verbs.recent,
    "history": evidence_verbs.history,
    "endpoint": _endpoint,
    "gateway": gateway_verbs.gateway,
    "gateway_report": gateway_verbs.report,
    "gateway_requests": gateway_verbs.ended,
    "requests": gateway_verbs.requests,
    "cluster": _cluster,
}
VERBS = (*OF_DAEMON, *OF_SLOT)
ARGUMENTS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(VERBS, frozenset()),
    "mode": frozenset({"mode", "defer"}),
    "wait": frozenset({"until", "timeout_s"}),
    "logs": frozenset({"lines", "since"}),
    "events": frozenset({"since"}),
    "retry": frozenset({"full"}),
    "gateway": frozenset({"since", "wait_s"}),
    "gateway_report": frozenset({"seq", "waiting", "at_engine", "totals", "endings"}),
    "gateway_requests": frozenset({"requests"}),
    "gateway_used": frozenset({"used"}),
    "key_add": frozenset(entry.name for entry in fields(ClientKey)) - {"digest"},
    "key_revoke": frozenset({"name"}),
    "cluster": frozenset({"probe"}),
    "history": frozenset({"seconds", "points", "until"}),
    "incident": frozenset({"number", "file", "offset"}),
}
