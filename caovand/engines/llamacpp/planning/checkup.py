"""What the doctor checks of a machine for llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.facts.checks import CheckResult, DoctorFacts
from caovand.core.facts.shortfalls import more_swap, small_host
from caovand.engines.common.checks import (
    cache_checks,
    driver_checks,
    link_checks,
    memory_checks,
    orphan_checks,
    plan_checks,
    port_checks,
)

ENGINE, MODEL = "engine", "model"


def checkup(facts: DoctorFacts) -> tuple[CheckResult, ...]:
    """Each check's result."""
    return tuple(result for check in CHECKS for result in check(facts))


def _engine(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine_problem is not None:
        problem = facts.engine_problem
        yield CheckResult(ENGINE, "FAIL", problem.message, problem.remedy)
    elif facts.engine is not None:
        text = f"llama.cpp {facts.engine.version}, built for {facts.engine.build.upper()}"
        yield CheckResult(ENGINE, "PASS", text)


def _driver(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is not None and facts.engine.build == "cuda":
        yield from driver_checks(facts)
        yield from link_checks(facts)


def _cards(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is None:
        return
    if facts.engine.build == "cuda" and not facts.gpus:
        yield CheckResult(
            "GPU", "FAIL", "the engine is a CUDA build, and no NVIDIA card is visible",
            "check nvidia-smi, or install the CPU build: sudo caovanctl engine install --kind"
            " llamacpp --build cpu",
        )  # fmt: skip
    elif facts.engine.build == "cpu" and facts.gpus:
        yield CheckResult(
            "GPU", "WARN", f"the engine is a CPU build, which leaves {len(facts.gpus)} cards idle",
            "sudo caovanctl engine install --kind llamacpp --build cuda",
        )  # fmt: skip
    for gpu in facts.gpus if facts.engine.build == "cuda" else ():
        yield CheckResult("GPU", "PASS", f"{gpu.index}: {gpu.name}, {gpu.free_mib} MiB free")


def _model(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.model_problem is not None:
        problem = facts.model_problem
        yield CheckResult(MODEL, "FAIL", problem.message, problem.remedy)
        return
    model = facts.model
    if model is None:
        return
    if model.gguf is None:
        yield CheckResult(
            MODEL, "FAIL", "llama.cpp serves GGUF files only, and this model is not in one",
            'download a GGUF file, or set [engine] kind = "vllm"',
        )  # fmt: skip
        return
    size = model.gguf.size / 2**30
    text = f"{model.architecture}, {size:.1f} GiB, mostly {model.quantization}"
    yield CheckResult(MODEL, "PASS", text)
    for note in model.notes:
        yield CheckResult(MODEL, "WARN", note.message, note.remedy)
    if (speed := facts.host.memory_gb_s) is not None:
        yield CheckResult("system", "PASS", f"host memory: {speed:.0f} GB/s, measured")
    if facts.gpus:
        return
    if lack := small_host(model, facts.host):
        yield CheckResult(MODEL, "WARN", lack.fact, more_swap(model.size() >> 20))
    else:
        text = f"{facts.host.available_mib} MiB of RAM for {model.gguf.size >> 20} MiB of weights"
        yield CheckResult("memory", "PASS", text)


CHECKS = (
    _driver, _engine, _cards, _model, memory_checks, plan_checks, port_checks, orphan_checks,
    cache_checks,
)  # fmt: skip
