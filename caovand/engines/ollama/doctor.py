"""The doctor's checks for Ollama."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.doctor.checks import (
    GPUS,
    engine_checks,
    gguf_size,
    link_checks,
    make_checkup,
    memory_checks,
    model_checks,
    orphan_checks,
    usable_card,
)
from caovand.core.doctor.facts import DoctorFacts
from caovand.core.facts.checks import CheckResult


def _card_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is None:
        return
    if facts.engine.build == "cpu" and facts.gpus:
        yield CheckResult(
            GPUS, "WARN", f"{len(facts.gpus)} cards are not used: Ollama has no CUDA libraries",
            "reinstall Ollama with its own installer, which includes them",
        )  # fmt: skip
    for gpu in facts.gpus if facts.engine.build == "cuda" else ():
        yield usable_card(gpu)


checkup = make_checkup(
    engine_checks(
        lambda engine: f"Ollama {engine.version or 'of unknown version'}, {engine.executable}"
    ),
    _card_checks,
    link_checks,
    orphan_checks,
    model_checks(gguf_size),
    memory_checks,
)
