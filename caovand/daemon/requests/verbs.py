"""The requests of the control sockets: one table of verbs, each with its handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
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
from caovand.daemon.requests import evidence_verbs, gateway_verbs
from caovand.daemon.requests.arguments import Result, VerbError, argument
from caovand.daemon.shared import now
from caovand.daemon.slot import Slot
from caovand.daemon.supervisor import Supervisor

MAX_WAIT_S = 86400.0
MAX_OPEN_WAIT_S = 60.0  # for a request from the socket that every user may use


@dataclass(frozen=True)
class DaemonVerb:
    """A request that concerns the whole daemon, and the names of its arguments."""

    handler: Callable[[Supervisor, Request], Awaitable[Result]]
    arguments: Sequence[str] = ()


@dataclass(frozen=True)
class SlotVerb:
    """A request that concerns one model, and the names of its arguments."""

    handler: Callable[[Slot, Mapping[str, Any]], Awaitable[Result]]
    arguments: Sequence[str] = ()


async def answer(supervisor: Supervisor, request: Request) -> Reply:
    """Carry out a request; every outcome is a Reply."""
    if request.op not in VERBS:
        return Reply(
            request.id,
            code="unknown-op",
            message=f'cannot do "{request.op[:64]}": this daemon ({__version__}) has no such '
            "operation",
            hint="caovanctl and caovand must have the same version",
        )
    unknown = set(request.args).difference(VERBS[request.op].arguments)
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
        hint = "nothing changed; correct the file and reload again"
        return Reply(request.id, None, "bad-config", str(problem), hint)
    except OSError as problem:
        text = f"cannot do {request.op}: {problem}"
        return Reply(request.id, None, "failed", text, "check space and permissions on that disk")


async def _carry_out(supervisor: Supervisor, request: Request) -> Result:
    verb = VERBS[request.op]
    _check_model(request.op, verb, request.model, supervisor.slots)
    if isinstance(verb, DaemonVerb):
        return await verb.handler(supervisor, request)
    slot = supervisor.slots[request.model or next(iter(supervisor.slots))]
    return await verb.handler(slot, request.args)


def _check_model(op: str, verb: DaemonVerb | SlotVerb, name: str, slots: Collection[str]) -> None:
    """Raise VerbError if a request does not identify its model."""
    known = f"name one of: {', '.join(slots)}"
    if name and isinstance(verb, DaemonVerb) and op != "status":
        text = f'cannot do "{op}" for one model: this operation concerns the whole daemon'
        raise VerbError("bad-argument", text, "omit the model")
    if name and name not in slots:
        text = f'cannot do "{op}": there is no model "{name[:64]}"'
        raise VerbError("unknown-model", text, known)
    if not name and isinstance(verb, SlotVerb) and len(slots) > 1:
        text = f'cannot do "{op}": the request does not name one of the {len(slots)} models'
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
        raise VerbError("no-plan", "cannot show a plan: none exists yet", "caovanctl status")
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
        "extra_args": list(slot.engine.arguments.redact(plan.extra_args)),
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


def _applying(
    event: type[events.Start | events.Stop | events.Restart],
) -> Callable[[Slot, Mapping[str, Any]], Awaitable[Result]]:
    """Make the handler of a request that applies an operator's event."""

    async def apply(slot: Slot, args: Mapping[str, Any]) -> Result:
        slot.apply_operator_event(event(at=now()))
        return _outcome(slot)

    return apply


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
        slot.apply_operator_event(events.Start(at=now()))
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
    deadline = now() + timeout_s

    def reached() -> bool:
        snapshot = slot.snapshot
        if until == "settled":
            return status.is_settled(snapshot)
        target = State.SERVING if until == "serving" else State.STOPPED
        return snapshot.state is target and not snapshot.replanning

    while not (done := reached()):
        left_s = deadline - now()
        # FAILED is final until someone acts.
        if left_s <= 0 or slot.snapshot.state is State.FAILED:
            break
        try:
            await asyncio.wait_for(slot.changed.wait(), left_s)
        except asyncio.TimeoutError:
            continue
    return {"reached": done, **slot.describe()}


def _check_wait(args: Mapping[str, Any], max_s: float) -> float:
    timeout_s: float = argument(args, "timeout_s", float, MAX_OPEN_WAIT_S)
    if not 0 <= timeout_s <= max_s:
        raise VerbError("bad-argument", f"cannot wait {timeout_s} s: from 0 to {max_s:.0f}")
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


VERBS: Mapping[str, DaemonVerb | SlotVerb] = {
    "status": DaemonVerb(_status),
    "version": DaemonVerb(_version),
    "reload": DaemonVerb(_reload),
    "events": DaemonVerb(evidence_verbs.events, ("since",)),
    "gateway_used": DaemonVerb(gateway_verbs.used, ("used",)),
    "keys": DaemonVerb(gateway_verbs.keys),
    "key_add": DaemonVerb(
        gateway_verbs.key_add, tuple(e.name for e in fields(ClientKey) if e.name != "digest")
    ),
    "key_revoke": DaemonVerb(gateway_verbs.key_revoke, ("name",)),
    "plan": SlotVerb(_plan),
    "mode": SlotVerb(_mode, ("mode", "defer")),
    "start": SlotVerb(_applying(events.Start)),
    "stop": SlotVerb(_applying(events.Stop)),
    "restart": SlotVerb(_applying(events.Restart)),
    "reset": SlotVerb(_reset),
    "retry": SlotVerb(_retry, ("full",)),
    "wait": SlotVerb(_wait, ("until", "timeout_s")),
    "logs": SlotVerb(evidence_verbs.logs, ("lines", "since")),
    "incidents": SlotVerb(evidence_verbs.incidents),
    "incident": SlotVerb(evidence_verbs.incident, ("number", "file", "offset")),
    "recent": SlotVerb(evidence_verbs.recent),
    "history": SlotVerb(evidence_verbs.history, ("seconds", "points", "until")),
    "endpoint": SlotVerb(_endpoint),
    "gateway": SlotVerb(gateway_verbs.gateway, ("since", "wait_s")),
    "gateway_report": SlotVerb(
        gateway_verbs.report, ("seq", "waiting", "at_engine", "totals", "endings")
    ),
    "gateway_requests": SlotVerb(gateway_verbs.ended, ("requests",)),
    "requests": SlotVerb(gateway_verbs.requests),
    "cluster": SlotVerb(_cluster, ("probe",)),
}
