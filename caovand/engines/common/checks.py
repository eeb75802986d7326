"""The doctor's checks that engines share: engine, driver, memory, plan, port, orphans, caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from caovand.core.facts.checks import CheckResult, DoctorFacts
from caovand.core.facts.inventory import EngineInfo, Gpu, ModelCard
from caovand.core.facts.shortfalls import old_driver
from caovand.core.problem import Problem

PLAN, SERVER, ENGINE, MODEL, CARD = "plan", "server", "engine", "model", "GPU"
MIN_LINK_ERRORS = 1000  # a sound link has a few, during training
DoctorCheck = Callable[[DoctorFacts], Iterator[CheckResult]]


def checkup(*own: DoctorCheck) -> Callable[[DoctorFacts], tuple[CheckResult, ...]]:
    """All results of an engine's own checks and of those that engines share, in this order."""
    every = (*own, memory_checks, plan_checks, port_checks, orphan_checks, cache_checks)
    return lambda facts: tuple(result for check in every for result in check(facts))


def failed_check(check: str, problem: Problem) -> CheckResult:
    """A problem as a row of the doctor's table."""
    return CheckResult(check, "FAIL", problem.message, problem.remedy)


def engine_checks(describe: Callable[[EngineInfo], str]) -> DoctorCheck:
    """Whether the engine was found; `describe` names its release and build."""

    def check(facts: DoctorFacts) -> Iterator[CheckResult]:
        if facts.engine_problem is not None:
            yield failed_check(ENGINE, facts.engine_problem)
        elif facts.engine is not None:
            yield CheckResult(ENGINE, "PASS", describe(facts.engine))

    return check


def usable_card(gpu: Gpu) -> CheckResult:
    """A card without problems."""
    return CheckResult(CARD, "PASS", f"{gpu.index}: {gpu.name}, {gpu.free_mib} MiB free")


def gguf_size(model: ModelCard) -> str:
    """Architecture, size and type of a model in a GGUF file."""
    size = model.gguf.size / 2**30 if model.gguf else 0
    return f"{model.architecture}, {size:.1f} GiB, mostly {model.quantization}"


def driver_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check the driver: an engine built for CUDA 13 does not start on a driver that only supports
    CUDA 12."""
    if not facts.gpus or not facts.gpus[0].driver:
        return
    has, name = facts.gpus[0].cuda, facts.gpus[0].driver
    lack = old_driver(facts.gpus, facts.engine.cuda if facts.engine else None)
    if lack:
        yield CheckResult("driver", "FAIL", lack.fact, lack.remedy)
    else:
        yield CheckResult("driver", "PASS", f"driver {name} supports CUDA {has}")


def link_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Report cards whose PCIe link keeps correcting errors, until one of them is fatal."""
    for index, count in facts.link_errors.items():
        if count >= MIN_LINK_ERRORS:
            yield CheckResult(
                CARD, "WARN", f"{index}: {count:,} corrected errors of its PCIe link since boot",
                "check the card's seat, riser or cable, or lower the slot's PCIe generation in the "
                "firmware; pcie_aspm=off on the kernel's command line if the link sleeps",
            )  # fmt: skip


def memory_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Whether the plan fits."""
    memory = facts.memory
    if memory is None or memory.fits is None:
        return
    if memory.fits:
        text = f"{memory.max_model_len} tokens of context for each of {memory.concurrency:g} slots"
        yield CheckResult("memory", "PASS", text)
    else:
        yield CheckResult("memory", "FAIL", memory.lack, "; ".join(memory.advice))


def plan_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Why there is no plan, or the plan's warnings."""
    if facts.plan_problem:
        yield CheckResult(PLAN, "FAIL", facts.plan_problem)
    for warning in facts.plan_warnings:
        yield CheckResult(PLAN, "WARN", warning)


def port_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Whether another program listens on the port."""
    if facts.listeners is None:
        return
    if facts.listeners:
        text = f"port {facts.port} is taken by {', '.join(facts.listeners)}"
        yield CheckResult("port", "FAIL", text, "stop it, or set another [server] port")
    elif facts.own_port:
        text = f"port {facts.port} is used by the engine that the daemon runs"
        yield CheckResult("port", "PASS", text)
    else:
        yield CheckResult("port", "PASS", f"port {facts.port} is free")


def orphan_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Report engines that nobody supervises."""
    for pid, name in facts.orphans:
        yield CheckResult(
            SERVER, "WARN", f"{name} (pid {pid}) is an engine that nobody supervises",
            f"kill {pid}",
        )  # fmt: skip


def cache_checks(
    facts: DoctorFacts, *, loss: str = "every start probes the engine again", least_mib: int = 0
) -> Iterator[CheckResult]:
    """Whether caches can be written; `loss` is the consequence if not."""
    free = facts.host.cache_free_mib
    if not facts.cache_writable:
        text, fix = f"{facts.cache_dir} cannot be written: {loss}", "writable for the service user"
        yield CheckResult("caches", "WARN", text, f"make {facts.cache_dir} {fix}")
    elif free is not None and free < least_mib:
        text = f"{free} MiB are free for caches; compiled kernels take gigabytes"
        yield CheckResult("caches", "WARN", text, f"free space under {facts.cache_dir}")
    elif free is not None:
        yield CheckResult("caches", "PASS", f"{free} MiB are free under {facts.cache_dir}")
