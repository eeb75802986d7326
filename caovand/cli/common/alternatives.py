"""Suggest other engines for a model that the chosen one cannot serve, or serves far more slowly."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.cli.common.planned import PlannedEngine
from caovand.core.engine.record import Engine
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import Gpu, Host, ModelCard
from caovand.engines import registry


def alternatives(
    engine: Engine, model: ModelCard, gpus: tuple[Gpu, ...], host: Host, tokens_s: float
) -> Iterator[CheckResult]:
    """Other engines' offers, if this one reaches `tokens_s` tokens/s, 0 if it cannot serve
    the model."""
    for kind in registry.MODULES:
        if kind != engine.name:
            yield from registry.engine_of(kind).planning.alternative(model, gpus, host, tokens_s)


def instead_of(engine: Engine, found: PlannedEngine) -> tuple[CheckResult, ...]:
    """Other engines' offers in place of this plan; none if its speed is not modelled."""
    machine, fits = found.inventory, found.memory is None or found.memory.fits is not False
    tokens_s = engine.planning.speed(found.plan, machine) if fits and not found.refusal else 0.0
    if tokens_s is None:
        return ()
    return tuple(alternatives(engine, machine.model, machine.gpus, machine.host, tokens_s))
