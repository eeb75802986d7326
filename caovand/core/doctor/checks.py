"""The doctor's checks that engines share: engine, driver, cards, model, plan, port and caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from caovand.core.doctor.facts import DoctorFacts
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import EngineInfo, Gpu, ModelCard
from caovand.core.facts.shortfalls import old_driver
from caovand.core.plan import Misfit
from caovand.core.problem import Problem

ENGINE, GPUS, MEMORY, MODEL, PLAN, SYSTEM = "engine", "GPUs", "memory", "model", "plan", "system"
MIN_LINK_ERRORS = 1000  # a sound link has a few, during training
DoctorCheck = Callable[[DoctorFacts], Iterator[CheckResult]]


def failed_check(group: str, problem: Problem) -> CheckResult:
    """A problem as a row of the doctor's table."""
    return CheckResult(group, "FAIL", problem.message, problem.remedy)


def engine_checks(
    describe: Callable[[EngineInfo], str],
    find_doubt: Callable[[EngineInfo], Problem | None] = lambda engine: None,
) -> DoctorCheck:
    """Check that the engine was found, and that caovan supports it.

    `describe` names its release and build; `find_doubt` says why it may not work.
    """

    def check(facts: DoctorFacts) -> Iterator[CheckResult]:
        if facts.engine is None:
            if facts.engine_problem is not None:
                yield failed_check(ENGINE, facts.engine_problem)
        elif doubt := find_doubt(facts.engine):
            yield CheckResult(ENGINE, "WARN", doubt.fact, doubt.remedy)
        else:
            yield CheckResult(ENGINE, "PASS", describe(facts.engine))

    return check


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


def usable_card(gpu: Gpu) -> CheckResult:
    """A card without problems."""
    return CheckResult(GPUS, "PASS", f"{gpu.index}: {gpu.name}, {gpu.free_mib} MiB free")


def link_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Report cards whose PCIe link keeps correcting errors, until one of them is fatal."""
    for index, count in facts.link_errors.items():
        if count >= MIN_LINK_ERRORS:
            yield CheckResult(
                GPUS, "WARN", f"{index}: {count:,} corrected PCIe link errors since boot",
                "check the card's seat, riser or cable, or lower the slot's PCIe generation in the "
                "firmware; pcie_aspm=off on the kernel's command line if the link sleeps",
            )  # fmt: skip


def orphan_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Report engine processes that have outlived their server, and keep its memory."""
    if facts.orphans:
        pids = [str(pid) for pid, _ in facts.orphans]
        names = ", ".join(sorted({name for _, name in facts.orphans}))
        text = f"left over from an engine that has exited: {names} (pid {', '.join(pids)})"
        yield CheckResult(GPUS, "FAIL", text, f"kill -9 {' '.join(pids)}")


def model_checks(describe: Callable[[ModelCard], str]) -> DoctorCheck:
    """Check that the model can be read, and report its notes.

    `describe` names its architecture and size; "" for a model that another check fails.
    """

    def check(facts: DoctorFacts) -> Iterator[CheckResult]:
        if facts.model_problem is not None:
            yield failed_check(MODEL, facts.model_problem)
        elif facts.model is not None and (text := describe(facts.model)):
            yield CheckResult(MODEL, "PASS", text)
            for note in facts.model.notes:
                yield CheckResult(MODEL, "WARN", note.message, note.remedy)

    return check


def gguf_size(model: ModelCard) -> str:
    """Architecture, size and type of a model in a GGUF file; "" for another file."""
    if model.gguf is None:
        return ""
    return f"{model.architecture}, {model.gguf.size / 2**30:.1f} GiB, mostly {model.quantization}"


def memory_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check that the plan fits into memory."""
    memory = facts.memory
    if memory is None or memory.fits is None:
        return
    if memory.fits:
        text = f"{memory.max_model_len} tokens of context in each of {memory.concurrency:g} slots"
        yield CheckResult(MEMORY, "PASS", text)
    else:
        yield CheckResult(MEMORY, "FAIL", memory.lack, "; ".join(memory.advice))


def plan_checks(facts: DoctorFacts, results: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """Report why there is no plan, or the plan's caveats, unless `results` already do."""
    if facts.plan_problem:
        yield failed_check(PLAN, Problem.stated(facts.plan_problem))
    reported = {result.text for result in results}
    for caveat in facts.caveats:
        if caveat.message not in reported and not isinstance(caveat, Misfit):
            yield CheckResult(PLAN, "WARN", caveat.message, caveat.remedy)


def port_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check that no other program listens on the port."""
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


def cache_checks(loss: str, min_mib: int = 0) -> DoctorCheck:
    """Check that caches can be written; `loss` is the consequence if not."""

    def check(facts: DoctorFacts) -> Iterator[CheckResult]:
        free = facts.host.cache_free_mib
        if not facts.cache_writable:
            text = f"{facts.cache_dir} cannot be written: {loss}"
            remedy = f"make {facts.cache_dir} writable for the service user"
            yield CheckResult("caches", "WARN", text, remedy)
        elif free is not None and free < min_mib:
            text = f"{free} MiB are free for caches; compiled kernels take gigabytes"
            yield CheckResult("caches", "WARN", text, f"free space under {facts.cache_dir}")
        elif free is not None:
            yield CheckResult("caches", "PASS", f"{free} MiB are free under {facts.cache_dir}")

    return check


PROBES_CACHE = cache_checks("every start has to probe the engine again")


def make_checkup(
    *checks: DoctorCheck, caches: DoctorCheck = PROBES_CACHE
) -> Callable[[DoctorFacts], tuple[CheckResult, ...]]:
    """Make an engine's doctor: its own `checks`, then those of its plan, port and `caches`.

    Root needs no sudo, which may be missing.
    """

    def run(facts: DoctorFacts) -> tuple[CheckResult, ...]:
        results = [result for check in checks for result in check(facts)]
        results += chain(plan_checks(facts, results), port_checks(facts), caches(facts))
        if facts.as_root:
            results = [
                replace(result, remedy=result.remedy.replace("sudo ", "")) for result in results
            ]
        return tuple(results)

    return run
