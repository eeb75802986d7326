"""The doctor's checks of a machine for SGLang."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.facts.checks import CheckResult, DoctorFacts
from caovand.engines.common import checks
from caovand.engines.common.checks import (
    CARD,
    MODEL,
    driver_checks,
    engine_checks,
    failed_check,
    link_checks,
    usable_card,
)
from caovand.engines.sglang.planning import cards


def _cards(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is None:
        return
    if not facts.gpus:
        yield CheckResult(
            CARD, "FAIL", "no NVIDIA card is visible",
            'check nvidia-smi, or set [engine] kind = "vllm", which has a CPU build',
        )  # fmt: skip
    for gpu in facts.gpus:
        if cards.has_kernels(facts.engine, gpu):
            yield usable_card(gpu)
        else:
            problem = cards.refusal(gpu)
            text = f"{gpu.index}: {gpu.name}: {problem.fact}"
            yield CheckResult(CARD, "FAIL", text, problem.remedy)


def _model(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.model_problem is not None:
        yield failed_check(MODEL, facts.model_problem)
    elif facts.model is not None:
        size = facts.model.size() / 2**30
        yield CheckResult(MODEL, "PASS", f"{facts.model.architecture}, {size:.1f} GiB")
        for note in facts.model.notes:
            yield CheckResult(MODEL, "WARN", note.message, note.remedy)


checkup = checks.checkup(
    driver_checks,
    engine_checks(lambda engine: f"SGLang {engine.version}, torch {engine.torch}, {engine.python}"),
    _cards,
    link_checks,
    _model,
)
