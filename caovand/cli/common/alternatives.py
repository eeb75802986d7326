"""Suggest other engines for a model that the chosen one cannot serve, or serves far more slowly."""

from __future__ import annotations

from collections.abc import Iterator

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
