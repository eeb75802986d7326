"""Forecast from its headers whether a model would run on this machine before downloading it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.planned import PlannedEngine, plan_for
from caovand.cli.common.survey import (
    SurveyedMachine,
    asked_config,
    chosen_mode,
    inspect,
    running,
)
from caovand.cli.plan import show_memory
from caovand.core.config.schema import Config
from caovand.core.model_source import gguf
from caovand.core.model_source.gguf import Variant


def foresee(args: argparse.Namespace, name: str, described: Path, path: Path) -> PlannedEngine:
    """The plan for the model that will be at `path`, made from the headers in `described`.

    Raises CommandError if the model has no plan.
    """
    daemon = {} if args.inventory else running(args.runtime)
    config, seen = _survey(args, daemon, str(described))
    try:
        machine = seen.with_model(config)
        card = replace(machine.model, path=str(path))
        config = replace(config, model=replace(config.model, path=str(path)))
        return plan_for(config, replace(machine, model=card), chosen_mode(daemon, args.inventory))
    except CommandError as problem:
        text = str(problem).replace(str(described), name)
        raise CommandError(Exit.FAILED, f"cannot plan {name}: {text}") from None


def choose_variant(args: argparse.Namespace, variants: Sequence[Variant]) -> Variant:
    """The GGUF model that suits the machine best."""
    daemon = {} if args.inventory else running(args.runtime)
    _, seen = _survey(args, daemon, variants[0].files[0].path)
    cards = sum(gpu.free_mib for gpu in seen.gpus)
    return gguf.preferred_variant(variants, cards << 20, seen.host.available_mib << 20)


def _survey(
    args: argparse.Namespace, daemon: Mapping[str, Any], model: str
) -> tuple[Config, SurveyedMachine]:
    """The configuration with this model, and the machine."""
    config, source = asked_config(args.config, daemon, model)
    return config, inspect(config, args.inventory, daemon.get("engine_pid"), source=source)


def show(planned: PlannedEngine, console: Console) -> bool:
    """Print a summary of the plan; return whether the model can run."""
    console.print(Text("; ".join(_highlights(planned)), style="bold"))
    memory = planned.memory
    if memory is None:
        return True
    show_memory(planned, memory, console)
    for warning in planned.plan.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    return memory.fits is not False


def _highlights(planned: PlannedEngine) -> Iterator[str]:
    """The settings that matter most in a plan."""
    cards = len(planned.cards)
    yield f"planned for {cards} GPU{'s' * (cards > 1)}" if cards else "planned for the CPU"
    memory = planned.memory
    if memory and memory.parts:
        yield f"weights {memory.weights_mib / 1024:.2f} GiB{' a card' * (cards > 1)}"
    if planned.plan.mtp:
        yield f"MTP {planned.plan.mtp}"
