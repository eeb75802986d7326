"""The doctor's checks of a machine for Ollama."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.facts.checks import CheckResult, DoctorFacts
from caovand.engines.common import checks
from caovand.engines.common.checks import (
    CARD,
    MODEL,
    engine_checks,
    failed_check,
    gguf_size,
    link_checks,
    usable_card,
)


def _cards(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is None:
        return
    if facts.engine.build == "cpu" and facts.gpus:
        yield CheckResult(
            CARD, "WARN", f"{len(facts.gpus)} cards are not used: Ollama has no CUDA libraries",
            "install Ollama again with its own installer, which brings them",
        )  # fmt: skip
    for gpu in facts.gpus if facts.engine.build == "cuda" else ():
        yield usable_card(gpu)


def _model(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.model_problem is not None:
        yield failed_check(MODEL, facts.model_problem)
    elif facts.model is not None and facts.model.gguf is not None:
        yield CheckResult(MODEL, "PASS", gguf_size(facts.model))


checkup = checks.checkup(
    engine_checks(
        lambda engine: f"Ollama {engine.version or 'of unknown version'}, {engine.executable}"
    ),
    _cards,
    link_checks,
    _model,
)
