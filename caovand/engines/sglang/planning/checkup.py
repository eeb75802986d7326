"""What the doctor checks of a machine for SGLang."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.facts.checks import CheckResult, DoctorFacts
from caovand.engines.common.checks import (
    cache_checks,
    driver_checks,
    link_checks,
    memory_checks,
    orphan_checks,
    plan_checks,
    port_checks,
)
from caovand.engines.sglang.planning import cards

ENGINE, MODEL = "engine", "model"


def checkup(facts: DoctorFacts) -> tuple[CheckResult, ...]:
    """Each check's result."""
    checks = (
        driver_checks, _engine, _cards, link_checks, _model, memory_checks, plan_checks,
        port_checks, orphan_checks, cache_checks,
    )  # fmt: skip
    return tuple(result for check in checks for result in check(facts))


def _engine(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine_problem is not None:
        problem = facts.engine_problem
        yield CheckResult(ENGINE, "FAIL", problem.message, problem.remedy)
    elif facts.engine is not None:
        text = f"SGLang {facts.engine.version}, torch {facts.engine.torch}, {facts.engine.python}"
        yield CheckResult(ENGINE, "PASS", text)


def _cards(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is None:
        return
    if not facts.gpus:
        yield CheckResult(
            "GPU", "FAIL", "no NVIDIA card is visible",
            'check nvidia-smi, or set [engine] kind = "vllm", which has a CPU build',
        )  # fmt: skip
    for gpu in facts.gpus:
        if cards.has_kernels(facts.engine, gpu):
            yield CheckResult("GPU", "PASS", f"{gpu.index}: {gpu.name}, {gpu.free_mib} MiB free")
        else:
            problem = cards.refusal(gpu)
            text = f"{gpu.index}: {gpu.name}: {problem.fact}"
            yield CheckResult("GPU", "FAIL", text, problem.remedy)


def _model(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.model_problem is not None:
        problem = facts.model_problem
        yield CheckResult(MODEL, "FAIL", problem.message, problem.remedy)
    elif facts.model is not None:
        size = facts.model.size() / 2**30
        yield CheckResult(MODEL, "PASS", f"{facts.model.architecture}, {size:.1f} GiB")
        for note in facts.model.notes:
            yield CheckResult(MODEL, "WARN", note.message, note.remedy)
