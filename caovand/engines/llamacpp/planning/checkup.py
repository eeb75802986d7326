"""The doctor's checks of a machine for llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.facts.checks import CheckResult, DoctorFacts
from caovand.core.facts.shortfalls import small_host
from caovand.engines.common import checks
from caovand.engines.common.cards import compiled_for
from caovand.engines.common.checks import (
    CARD,
    MODEL,
    driver_checks,
    engine_checks,
    failed_check,
    gguf_size,
    link_checks,
    usable_card,
)


def _driver(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is not None and facts.engine.build == "cuda":
        yield from driver_checks(facts)


def _cards(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is None:
        return
    if facts.engine.build == "cuda" and not facts.gpus:
        yield CheckResult(
            CARD, "FAIL", "the engine is a CUDA build, and no NVIDIA card is visible",
            "check nvidia-smi, or install the CPU build: sudo caovanctl engine install --kind"
            " llamacpp --build cpu",
        )  # fmt: skip
    elif facts.engine.build == "cpu" and facts.gpus:
        yield CheckResult(
            CARD, "WARN",
            f"the engine is a CPU build, which does not use the {len(facts.gpus)} cards",
            "sudo caovanctl engine install --kind llamacpp --build cuda",
        )  # fmt: skip
    for gpu in facts.gpus if facts.engine.build == "cuda" else ():
        if compiled_for(facts.engine, gpu):  # the plan warns about other cards
            yield usable_card(gpu)


def _model(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.model_problem is not None:
        yield failed_check(MODEL, facts.model_problem)
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
    yield CheckResult(MODEL, "PASS", gguf_size(model))
    for note in model.notes:
        yield CheckResult(MODEL, "WARN", note.message, note.remedy)
    if (speed := facts.host.memory_gb_s) is not None:
        yield CheckResult("system", "PASS", f"host memory: {speed:.0f} GB/s, measured")
    if facts.gpus:
        return
    if lack := small_host(model, facts.host):
        yield CheckResult(MODEL, "WARN", lack.fact, lack.remedy)
    else:
        text = f"{facts.host.available_mib} MiB of RAM for {model.gguf.size >> 20} MiB of weights"
        yield CheckResult("memory", "PASS", text)


checkup = checks.checkup(
    _driver,
    engine_checks(lambda engine: f"llama.cpp {engine.version}, built for {engine.build.upper()}"),
    _cards,
    link_checks,
    _model,
)
