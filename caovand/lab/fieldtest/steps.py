"""The steps of a field test, each run once, and the report from their results."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from caovand import __version__
from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.network import free_port
from caovand.cli.common.checks import document
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.planned import PlannedEngine, plan_for
from caovand.cli.common.progress import Screen
from caovand.cli.doctor.examination import examine
from caovand.core.config.schema import Config
from caovand.core.config.text import render
from caovand.core.facts import inventory_file
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.model_source.pace import duration
from caovand.core.secrets import hide, redact_home_paths, secrets_of
from caovand.lab.bench.drive import BenchOrder
from caovand.lab.core.fieldtest import report, trials
from caovand.lab.fieldtest import kernels, trial
from caovand.lab.fieldtest.work import KERNELS, FieldtestResults

REPORT = "report.md"
ORDER = BenchOrder((512, 4096, 32768), (1, 4), 3, 128, 1, "")
QUICK = BenchOrder((256,), (1, 2), 1, 16, 1, "")


@dataclass(frozen=True)
class Subject:
    """The subject of the test: the configuration, and the machine without the service's engine.

    `order` lists the measurements of each trial, fewer in a quick test.
    """

    config: Config
    machine: Inventory
    source: Path
    order: BenchOrder

    @property
    def cards(self) -> tuple[Gpu, ...]:
        """The cards that the configuration allows."""
        allowed = self.config.engine.gpus
        return tuple(gpu for gpu in self.machine.gpus if allowed is None or gpu.index in allowed)

    @property
    def card(self) -> Gpu | None:
        """The card for measuring the kernels, preferably one that they are made for."""
        turing = [gpu for gpu in self.cards if gpu.compute_capability == trials.TURING]
        return next(iter(turing or self.cards), None)

    @property
    def no_kernels(self) -> str:
        """Why the kernels are not measured; "" if they are."""
        capabilities = [gpu.compute_capability for gpu in self.cards]
        if not trials.kernels_act(self.config, capabilities):
            return "caovan's kernels are for SM75, but no such card is in use"
        if self.machine.engine.plugin is None:
            return "the engine has no plugin: `caovanctl engine install` adds one"
        return ""

    def describe(self) -> dict[str, Any]:
        """The key of all results except the kernels': if it changes, earlier results are void."""
        return {
            "config": hashlib.sha256(render(self.config).encode()).hexdigest(),
            "version": __version__,
            "engine": self._engine(),
            "gpus": list(map(_identity, self.cards)),
            "order": repr(self.order),
        }

    def kernels_key(self) -> str:
        """The key of the kernels' result, which takes minutes and survives other changes."""
        seen = [self._engine(), _identity(self.card) if self.card else "", self.no_kernels]
        return hashlib.sha256(json.dumps(seen).encode()).hexdigest()

    def _engine(self) -> list[str | None]:
        engine = self.machine.engine
        return [engine.python, engine.version, engine.plugin]


def _identity(gpu: Gpu) -> str:
    return gpu.uuid or gpu.name


def check(subject: Subject) -> None:
    """Raise CommandError if no trial has a plan that can run."""
    planned_trials = list(_plan_trials(subject, free_port.free_port()))
    if not any(entry.planned for entry in planned_trials):
        raise CommandError(
            Exit.FAILED,
            f"cannot measure anything: {planned_trials[0].why}",
            f"`caovanctl doctor --config {subject.source}` names the fix",
        )


def take(subject: Subject, work: FieldtestResults, screen: Screen) -> None:
    """Run every step that has no result yet."""
    port = free_port.free_port()
    planned_trials = list(_plan_trials(subject, port))
    total = len(planned_trials) + 2
    if work.of("facts") is None:
        screen.say(f"[1/{total}] the machine")
        work.keep("facts", _facts(subject))
    measured, key = work.of(KERNELS), subject.kernels_key()
    if measured is None or measured.get("of") != key:
        screen.say(f"[2/{total}] the kernels")
        work.keep(KERNELS, {**_kernels(subject, screen), "of": key})
    for number, entry in enumerate(planned_trials, 3):
        current, planned = entry.trial, entry.planned
        if work.of(current.name) is not None:
            continue
        about = f": skipped: {entry.why}" if entry.why else _remaining_time(planned_trials, work)
        screen.say(f"[{number}/{total}] {current.title}{about}")
        if planned is None:
            result = {**trial.empty_result(current), "state": "skipped", "why": entry.why}
        else:
            begun = time.monotonic()
            quiet = trials.quiet(current.config, port)
            result = trial.run(current, quiet, work.folder / "trial", subject.order)
            result["seconds"] = round(time.monotonic() - begun, 1)
        # A plan changed by a rung is not the one that was modelled.
        if planned and result["plan"] and not result["plan"]["rungs"]:
            result["modelled"] = _model_cells(subject, planned, result["bench"])
        work.keep(current.name, result)


@dataclass(frozen=True)
class _PlannedTrial:
    """A trial with its plan, or the reason why it is skipped."""

    trial: trials.FieldTrial
    planned: PlannedEngine | None
    why: str


def _plan_trials(subject: Subject, port: int) -> Iterator[_PlannedTrial]:
    """Every trial except those whose command equals an earlier one's."""
    seen: dict[str, str] = {}
    for candidate in _trials(subject):
        planned, reason = _plan_trial(subject, trials.quiet(candidate.config, port))
        same = _command(planned)
        if planned and same in seen:
            planned, reason = None, f'the same command as "{seen[same]}"'
        seen.setdefault(same, candidate.title)
        yield _PlannedTrial(candidate, planned, reason)


def _model_cells(
    subject: Subject, planned: PlannedEngine, bench: Any
) -> list[dict[str, float | None]]:
    """Modelled values of each measured cell."""
    model = chosen_engine(subject.config).planning.modelled
    return [
        asdict(model(planned.plan, planned.inventory, cell["prompt"], cell["at_once"]))
        for cell in (bench or {"cells": ()})["cells"]
    ]


def _remaining_time(planned_trials: Sequence[_PlannedTrial], work: FieldtestResults) -> str:
    """Remaining time, extrapolated from the finished trials; "" before the first."""
    results = [(entry, work.of(entry.trial.name)) for entry in planned_trials]
    took = [result["seconds"] for _, result in results if result and result["seconds"]]
    left = sum(1 for entry, result in results if entry.planned and result is None)
    return f", about {duration(mean(took) * left)} left" if took else ""


def _trials(subject: Subject) -> list[trials.FieldTrial]:
    return list(trials.trials(subject.config, [gpu.index for gpu in subject.cards]))


def _plan_trial(subject: Subject, config: Config) -> tuple[PlannedEngine | None, str]:
    """A trial's plan, or why it has none that runs."""
    try:
        planned = plan_for(config, subject.machine, None)
    except CommandError as problem:
        return None, problem.message
    if planned.memory is not None and planned.memory.fits is False:
        return None, "it does not fit in memory"
    return planned, ""


def _command(planned: PlannedEngine | None) -> str:
    return json.dumps([planned.command.argv, dict(planned.command.env)]) if planned else ""


def _facts(subject: Subject) -> dict[str, Any]:
    machine = subject.machine
    return {
        "version": __version__,
        "at": time.strftime("%Y-%m-%d %H:%M"),
        "engine": chosen_engine(subject.config).title,
        "model": Path(subject.config.model.path).name,
        "quick": subject.order == QUICK,
        "order": asdict(subject.order),
        "inventory": inventory_file.render(machine.gpus, machine.host, machine.engine),
        "doctor": _doctor(subject.source),
    }


def _doctor(source: Path) -> dict[str, Any]:
    try:
        return document(examine(source))
    except CommandError as problem:
        print(f"caovanctl doctor: {problem}", file=sys.stderr)
        return {"checks": []}


def _kernels(subject: Subject, screen: Screen) -> dict[str, Any]:
    if subject.no_kernels or subject.card is None:
        return {"why": subject.no_kernels, "parts": []}
    return kernels.measure(subject.machine.engine, subject.card, screen.say)


def collect(subject: Subject, work: FieldtestResults) -> dict[str, bytes]:
    """The files of the archive, without secrets."""
    todo, config = _trials(subject), subject.config
    results = {name: work.of(name) for name in ("facts", KERNELS, *(one.name for one in todo))}
    served = [
        result for name, result in results.items() if result and name not in ("facts", KERNELS)
    ]
    text = "\n".join(report.lines(results["facts"], results[KERNELS], served)) + "\n"
    texts = {
        REPORT: text,
        **{
            f"{name}.json": json.dumps(result, indent=1)
            for name, result in results.items()
            if result
        },
    }
    secrets = secrets_of(dict(config.engine.env) | dict(os.environ))
    home = os.environ.get("HOME") or "/root"
    return {
        name: redact_home_paths(hide(text, secrets), home).encode() for name, text in texts.items()
    }
