"""The doctor's checks for SGLang."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.doctor.checks import (
    GPUS,
    driver_checks,
    engine_checks,
    link_checks,
    make_checkup,
    memory_checks,
    model_checks,
    orphan_checks,
    usable_card,
)
from caovand.core.doctor.facts import DoctorFacts
from caovand.core.facts.checks import CheckResult
from caovand.engines.sglang.planning import cards


def _card_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is None:
        return
    if not facts.gpus:
        yield CheckResult(
            GPUS, "FAIL", "no NVIDIA card is visible",
            'check nvidia-smi, or set [engine] kind = "vllm", which has a CPU build',
        )  # fmt: skip
    for gpu in facts.gpus:
        if cards.has_kernels(facts.engine, gpu):
            yield usable_card(gpu)
        else:
            problem = cards.refusal(gpu)
            text = f"{gpu.index}: {gpu.name}: {problem.fact}"
            yield CheckResult(GPUS, "FAIL", text, problem.remedy)


checkup = make_checkup(
    driver_checks,
    engine_checks(lambda engine: f"SGLang {engine.version}, torch {engine.torch}, {engine.python}"),
    _card_checks,
    link_checks,
    orphan_checks,
    model_checks(lambda model: f"{model.architecture}, {model.size() / 2**30:.1f} GiB"),
    memory_checks,
)
