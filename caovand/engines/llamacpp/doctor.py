"""The doctor's checks for llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.doctor.checks import (
    GPUS,
    MEMORY,
    MODEL,
    SYSTEM,
    driver_checks,
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
from caovand.core.facts.shortfalls import small_host
from caovand.engines.common.cards import compiled_for


def _driver_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is not None and facts.engine.build == "cuda":
        yield from driver_checks(facts)


def _card_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.engine is None:
        return
    if facts.engine.build == "cuda" and not facts.gpus:
        yield CheckResult(
            GPUS, "FAIL", "the engine is a CUDA build, but no NVIDIA card is visible",
            "check nvidia-smi, or install the CPU build: sudo caovanctl engine install --kind"
            " llamacpp --build cpu",
        )  # fmt: skip
    elif facts.engine.build == "cpu" and facts.gpus:
        yield CheckResult(
            GPUS, "WARN",
            f"the engine is a CPU build, which does not use the {len(facts.gpus)} cards",
            "sudo caovanctl engine install --kind llamacpp --build cuda",
        )  # fmt: skip
    for gpu in facts.gpus if facts.engine.build == "cuda" else ():
        if compiled_for(facts.engine, gpu):  # the plan warns about other cards
            yield usable_card(gpu)


def _format_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.model is not None and facts.model.gguf is None:
        yield CheckResult(
            MODEL, "FAIL", "llama.cpp serves only GGUF files, and this model is not one",
            'download a GGUF file, or set [engine] kind = "vllm"',
        )  # fmt: skip


def _host_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check the host's memory, where layers that are not on a card live."""
    model, host = facts.model, facts.host
    if model is None or model.gguf is None:
        return
    if host.memory_gb_s is not None:
        yield CheckResult(SYSTEM, "PASS", f"host memory: {host.memory_gb_s:.0f} GB/s, measured")
    if facts.gpus:
        return
    if lack := small_host(model, host):
        yield CheckResult(MODEL, "WARN", lack.fact, lack.remedy)
    else:
        text = f"{host.available_mib} MiB of RAM for {model.gguf.size >> 20} MiB of weights"
        yield CheckResult(MEMORY, "PASS", text)


checkup = make_checkup(
    _driver_checks,
    engine_checks(lambda engine: f"llama.cpp {engine.version}, built for {engine.build.upper()}"),
    _card_checks,
    link_checks,
    orphan_checks,
    _format_checks,
    model_checks(gguf_size),
    _host_checks,
    memory_checks,
)
