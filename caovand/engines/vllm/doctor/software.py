"""Checks of vLLM itself: release, toolchain, FlashInfer and its compiled kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from caovand.core.doctor.checks import ENGINE, engine_checks
from caovand.core.doctor.facts import DoctorFacts
from caovand.core.facts.checks import CheckResult
from caovand.engines.vllm import kernels, releases
from caovand.engines.vllm.doctor.plugin import WITH_PLUGIN, has_turing
from caovand.engines.vllm.machine.attention import flashinfer_refusal, remedy
from caovand.engines.vllm.machine.capabilities import type_without_bfloat16
from caovand.engines.vllm.planning.devices import card_problem

release_checks = engine_checks(
    lambda engine: f"vLLM {engine.version} ({engine.build}), torch {engine.torch}",
    releases.untested,
)


def toolchain_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check that the engine was probed, and that it can compile kernels."""
    engine = facts.engine
    if engine is None:
        return
    if facts.half_asked:
        text = "vLLM is still being imported to list its flags, parsers, models and kernels"
        fix = (
            "run the doctor again in a minute, or run `caovanctl inventory`, which waits for "
            "the import"
        )
        yield CheckResult(ENGINE, "WARN", f"{text}: they are not checked", fix)
    if engine.build == "cuda" and not engine.compiler and engine.python_version:
        text = "no C compiler is installed: Triton cannot build its launchers"
        yield CheckResult(ENGINE, "FAIL", text, "sudo apt install gcc")
    elif engine.build == "cuda" and engine.python_h is None:
        release = ".".join(engine.python_version.split(".")[:2])
        text = f"Python.h is missing for Python {release}: Triton cannot build its launchers"
        yield CheckResult(ENGINE, "FAIL", text, f"sudo apt install python{release}-dev")
    elif engine.build == "cuda" and engine.nvcc and engine.cxx is None:
        text = "no C++ compiler is installed: nvcc cannot build FlashInfer's kernels"
        yield CheckResult(ENGINE, "FAIL", text, "sudo apt install g++")


def flashinfer_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check FlashInfer: without it attention falls back to Triton, slower and with a float16
    cache."""
    engine = facts.engine
    if engine is None or engine.build != "cuda" or not has_turing(facts):
        return
    model = facts.model
    dtype = facts.dtype or (type_without_bfloat16(model) if model else "")
    refusal = flashinfer_refusal(model, engine, dtype, facts.wants_plugin, facts.engine_env)
    why = refusal.why if refusal else ""
    if refusal is None:
        yield CheckResult(ENGINE, "PASS", f"FlashInfer {engine.flashinfer} supports SM75")
    elif refusal.of in ("model", "width"):
        yield CheckResult(ENGINE, "PASS", f"{why}; the plan uses another attention backend")
    elif refusal.of == "engine":
        fix = f"{engine.python} -m pip install flashinfer-python==0.6.8.post1"
        if engine.release >= releases.FLASHINFER_REFUSES_SM75:
            fix = WITH_PLUGIN
        yield CheckResult(ENGINE, "WARN", f"{why}: attention falls back to Triton", fix)
    else:
        text = f"{why}: attention falls back to Triton, with a float16 cache"
        yield CheckResult(ENGINE, "WARN", text, remedy(engine))


def kernel_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check for compiled kernels: the first start that needs a missing one compiles it, for
    minutes."""
    engine = facts.engine
    if engine is None or not engine.cuda_home:
        return
    usable = Counter(gpu.compute_capability for gpu in facts.gpus if not card_problem(gpu))
    for capability, count in sorted(usable.items()):
        name, lacking = "SM{}{}".format(*capability), kernels.missing(engine, capability, count)
        if lacking:
            text = f"FlashInfer's kernels for {name} are not built ({', '.join(lacking)})"
            fix = "sudo caovanctl engine build-kernels"
            yield CheckResult(ENGINE, "WARN", f"{text}: the next start compiles them", fix)
        else:
            text = f"the FlashInfer kernels that most models need on {name} are built"
            yield CheckResult(ENGINE, "PASS", text)
