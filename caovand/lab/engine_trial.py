"""`caovanctl engine try`: serve with another engine, compare it with the old one, and keep it or
revert."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from caovand.adapters.engine_install import places
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.network import http
from caovand.cli.common import survey, waiting
from caovand.cli.common.client import DaemonClient, connect
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.planned import plan_for
from caovand.cli.common.progress import Screen
from caovand.cli.engine.shared import root_of
from caovand.core.config.schema import Config
from caovand.lab.bench import drive, show, target
from caovand.lab.bench.drive import BenchOrder
from caovand.lab.core.bench import compare

PROMPTS, CONCURRENCY, ROUNDS, TOKENS = (512, 4096), (1, 4), 5, 128
MAX_SLOWER = 0.03
"""Tolerated slowdown: a significant one can still be too small to justify an old release."""
TRIAL_PROMPTS = (
    "1, 2, 3, 4, 5, 6, 7, 8,",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a town by the sea, there lived",
)
ANSWER_TOKENS, ANSWER_S = 32, 300.0
POLL_S = 1.0


@dataclass(frozen=True)
class TrialMeasurement:
    """Answers to the fixed prompts, and the result of `bench`."""

    answers: tuple[str, ...]
    bench: dict[str, Any]


def run(args: argparse.Namespace) -> int:
    screen, root = Screen(sys.stderr), root_of(args)
    with connect(args) as client:
        status = client.ask("status")
        tried = _find_engine(root, args.name)
        old = _engine_to_replace(client, status, root, tried)
        _plannable(status, tried)
        _wait_until_idle(client, args.idle, screen)
        screen.say(f"measuring {old.name}")
        before = _measure(client)
        with (
            _handle_signals(ENDING, signal.default_int_handler),
            _switch(client, root, old, tried, screen) as outcome,
        ):
            screen.say(f"measuring {tried.name}")
            after = _measure(client)
            rows = list(compare.rows(before.bench, after.bench))
            if not args.keep_slower:
                outcome.why = why_slower(rows)
    equal = sum(a == b for a, b in zip(before.answers, after.answers, strict=True))
    kept = not outcome.why
    if args.json:
        rest = show.comparison(rows, compare.differing_conditions(before.bench, after.bench))
        document = {"tried": tried.name, "before": old.name, "kept": kept, "why": outcome.why,
                    "answers": len(after.answers), "equal_answers": equal, **rest}  # fmt: skip
        print(json.dumps(document))
    else:
        print(f"A is {old.name}\nB is {tried.name}")
        for line in show.side_by_side(
            rows, compare.differing_conditions(before.bench, after.bench)
        ):
            print(line)
        print(f"{equal} of {len(after.answers)} fixed prompts got the same answer")
        verdict = "is kept" if kept else f"is not kept, and {old.name} serves again: {outcome.why}"
        print(f"{tried.name} {verdict}")
    return Exit.DONE if kept else Exit.FAILED


def why_slower(rows: list[compare.FigureChange]) -> str:
    """Why an engine with these results is rejected; empty if it is kept."""
    worst = max(
        (row for row in rows if row.verdict == "worse" and abs(row.change) > MAX_SLOWER),
        key=lambda row: abs(row.change),
        default=None,
    )
    if worst is None:
        return ""
    label = show.WORDS[worst.figure][0]
    place = f"prompts of {worst.prompt:,}, {worst.at_once} at once"
    return f"{label} is {abs(worst.change):.0%} worse ({place})"


def _find_engine(root: Path, name: str) -> places.InstalledEngine:
    """The installed engine with this name or release; of several builds of a release, the
    newest."""
    releases = [engine for engine in places.engines(root) if engine.version == name]
    if len(releases) > 1:
        names = " and ".join(engine.name for engine in releases)
        raise EngineError(f"try {name}", f"{names} have this version", "name one of them")
    if releases:
        return releases[0]
    try:
        return places.get(root, name, f"try {name}")
    except EngineError as error:
        if name in places.unfinished(root):
            raise
        fix = f"install that version first: sudo caovanctl engine install {name}"
        raise EngineError(error.problem.cannot, error.problem.fact, fix) from None


def _engine_to_replace(
    client: DaemonClient, status: Mapping[str, Any], root: Path, tried: places.InstalledEngine
) -> places.InstalledEngine:
    """The serving engine that the switch replaces; raises EngineError if there is none."""
    what = f"try {tried.name}"
    try:
        tested = target.find(client, None, what)
    except CommandError as problem:
        raise EngineError(what, problem.message, problem.hint) from None
    old = places.current(root, tried.kind)
    if old is not None and old.name == tried.name:
        old = _not_reloaded(root, status, tried)
    if old is None or tested.described["engine"] != tried.kind:
        fact = f"the serving engine is {tested.described['engine']}, which is not in {root}"
        raise EngineError(what, fact, "choose an engine of the same kind")
    if status["rungs"]:
        fact = f"the serving plan is degraded: {', '.join(status['rungs'])}"
        raise EngineError(what, fact, "see `caovanctl incidents`, then `caovanctl retry --full`")
    return old


def _not_reloaded(
    root: Path, status: Mapping[str, Any], tried: places.InstalledEngine
) -> places.InstalledEngine:
    """The engine that still serves, after an installation has already selected the tried one."""
    old, version = (
        places.linked_engine(root, "previous", tried.kind),
        status["reported"].get("version"),
    )
    if old is None or old.version != version or tried.version == version:
        fact = "this engine is already serving"
        raise EngineError(f"try {tried.name}", fact, "no other engine is there to compare with")
    return old


def _plannable(status: Mapping[str, Any], tried: places.InstalledEngine) -> None:
    """Refuse an engine that has no plan or does not fit, before anything is stopped."""
    what = f"try {tried.name}"
    source = survey.daemon_config(status)
    config = survey.configuration(source)
    link = places.link_of("current", tried.kind)
    root = tried.path.parent
    followed = root / link / "bin/python"
    named = config.engine.python
    default = places.root_from(None, os.environ) / link / "bin/python"
    if Path(named or default) != followed:
        folder = tried.path.parent
        fact = f"[engine] python is {named or default}: switching in {folder} does not change it"
        remedy = f'set it to "auto" or "{followed}", or name another folder with --root'
        raise EngineError(what, fact, remedy)
    if config.cluster.role != "off":
        fact = "all nodes of a cluster must have the same engine"
        raise EngineError(what, fact, "run `caovanctl engine use` on each node, then reload")
    if refusal := _refusal(_with(config, tried), status, source):
        raise EngineError(what, refusal, "nothing was stopped; change the configuration first")


def _with(config: Config, tried: places.InstalledEngine) -> Config:
    return replace(config, engine=replace(config.engine, python=str(tried.interpreter)))


def _refusal(config: Config, status: Mapping[str, Any], source: Path | None) -> str:
    """Why the plan for this engine would not start; empty if it would."""
    pid = status.get("engine_pid")
    try:
        machine = survey.inspect(config, None, pid, source=source).with_model(config)
        planned = plan_for(config, machine, status["mode"])
    except CommandError as problem:
        return problem.message
    if planned.memory is not None and planned.memory.fits is False:
        return planned.memory.shortage or planned.memory.reason or "its plan does not fit"
    return planned.refusal


def _wait_until_idle(client: DaemonClient, idle_s: float, screen: Screen) -> None:
    """Wait until there was no request for `idle_s`."""
    if not idle_s:
        return
    screen.say(f"waiting for {idle_s:g} s without a request")
    last = time.monotonic()
    while time.monotonic() - last < idle_s:
        figures = client.ask("status")["figures"]
        if figures["running"] or figures["waiting"]:
            last = time.monotonic()
        time.sleep(min(POLL_S, idle_s))


@dataclass
class _Outcome:
    """Why the tried engine is rejected; empty if it is kept."""

    why: str = ""


@contextlib.contextmanager
def _switch(
    client: DaemonClient,
    root: Path,
    old: places.InstalledEngine,
    tried: places.InstalledEngine,
    screen: Screen,
) -> Iterator[_Outcome]:
    """The daemon serves with the tried engine during the context; afterwards with the old one if
    the trial failed."""
    outcome = _Outcome(f"the trial of {tried.name} was interrupted")
    try:
        _serve_with(client, root, tried, f"try {tried.name}")
        outcome.why = ""
        yield outcome
    except BaseException as problem:
        outcome.why = str(problem) or "the trial was interrupted"
        raise
    finally:
        if outcome.why:
            screen.say(f"going back to {old.name}: {outcome.why}")
            with _handle_signals((signal.SIGINT, *ENDING), signal.SIG_IGN):
                _serve_with(client, root, old, f"go back to {old.name}")


ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end the verb like Ctrl-C, so that the old engine is restored."""


@contextlib.contextmanager
def _handle_signals(numbers: Sequence[int], handler: Any) -> Iterator[None]:
    """Replace the handler of these signals during the context."""
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, usual in zip(numbers, before, strict=True):
            signal.signal(number, usual)


def _serve_with(
    client: DaemonClient, root: Path, engine: places.InstalledEngine, what: str
) -> None:
    """Switch to an engine, and wait until the daemon serves with it."""
    with places.locked(root, what, make=False):
        places.switch(root, engine.name)
    client.ask("reload")
    status = waiting.follow(client, "settled", waiting.PATIENCE_S, quiet=False)
    if status["state"] != "SERVING" or status["refusal"]:
        reason = (status["refusal"] or {}).get("text") or f"{status['state']}: {status['reason']}"
        raise EngineError(what, reason, "see `caovanctl incidents`")


def _measure(client: DaemonClient) -> TrialMeasurement:
    tested = target.find(client, None, "try an engine")
    tokens = 1 if tested.work else TOKENS
    answers = () if tested.work else tuple(_answer(tested, prompt) for prompt in TRIAL_PROMPTS)
    order = BenchOrder(
        target.lengths(tested, None, PROMPTS, tokens), CONCURRENCY, ROUNDS, tokens, 1,
        uuid.uuid4().hex[:12],
    )  # fmt: skip
    document, cut = drive.measure(client, tested, order)
    if cut is not None:
        raise cut.error or KeyboardInterrupt
    return TrialMeasurement(answers, document)


def _answer(tested: target.Target, prompt: str) -> str:
    """The greedy continuation of a fixed prompt."""
    body = {
        "model": tested.model, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0,
    }  # fmt: skip
    cannot = "cannot try an engine: a fixed prompt was not answered"
    try:
        answer = http.call(tested.endpoint, tested.api.completions, ANSWER_S, body)
        if answer.status != 200:
            raise CommandError(Exit.FAILED, f"{cannot}: HTTP {answer.status}", "caovanctl logs")
        return str(json.loads(answer.body)["choices"][0]["text"])
    except (http.Unanswered, ValueError, LookupError, TypeError) as problem:
        raise CommandError(Exit.FAILED, f"{cannot}: {problem}", "caovanctl logs") from problem
