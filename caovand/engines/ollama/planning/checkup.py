"""What the doctor checks of a machine for Ollama."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.facts.checks import CheckResult, DoctorFacts
from caovand.engines.common.checks import (
    cache_checks,
    link_checks,
    memory_checks,
    orphan_checks,
    plan_checks,
    port_checks,
)

ENGINE, MODEL = "engine", "model"


def checkup(facts: DoctorFacts) -> tuple[CheckResult, ...]:
    """Each check's result."""
    checks = (
        _engine, _cards, link_checks, _model, memory_checks, plan_checks, port_checks,
        orphan_checks, cache_checks,
    )  # fmt: skip
    return tuple(result for check in checks for result in check(facts))


def _engine(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine_problem is not None:
        problem = facts.engine_problem
        yield CheckResult(ENGINE, "FAIL", problem.message, problem.remedy)
    elif facts.engine is not None:
        version = facts.engine.version or "of unknown version"
        yield CheckResult(ENGINE, "PASS", f"Ollama {version}, {facts.engine.executable}")


def _cards(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is None:
        return
    if facts.engine.build == "cpu" and facts.gpus:
        yield CheckResult(
            "GPU", "WARN", f"{len(facts.gpus)} cards are not used: Ollama has no CUDA libraries",
            "install Ollama again with its own installer, which brings them",
        )  # fmt: skip
    for gpu in facts.gpus if facts.engine.build == "cuda" else ():
        yield CheckResult("GPU", "PASS", f"{gpu.index}: {gpu.name}, {gpu.free_mib} MiB free")


def _model(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.model_problem is not None:
        problem = facts.model_problem
        yield CheckResult(MODEL, "FAIL", problem.message, problem.remedy)
    elif facts.model is not None and facts.model.gguf is not None:
        size = facts.model.gguf.size / 2**30
        text = f"{facts.model.architecture}, {size:.1f} GiB, mostly {facts.model.quantization}"
        yield CheckResult(MODEL, "PASS", text)
