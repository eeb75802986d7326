"""Checks of the machine for vLLM: system, limits and cards."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.doctor.checks import GPUS, SYSTEM
from caovand.core.doctor.facts import DoctorFacts
from caovand.core.facts.checks import CheckResult, CheckVerdict
from caovand.core.facts.occupancy import NOTABLE_MIB
from caovand.core.facts.shortfalls import LARGER_SHM, SMALL_SHM_MIB
from caovand.engines.vllm.planning.devices import card_problem

FULL_SHM_MIB = 64
FEW_FILES = 4096


def python_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Check Python: CPython 3.10.0 disassembles some bytecode wrongly (bpo-45757), on which
    torch.compile fails."""
    engine = facts.engine.python_version if facts.engine else ""
    for whose, version in (("caovan's", facts.python_version), ("the engine's", engine)):
        if version == "3.10.0":
            text = f"{whose} Python is 3.10.0, whose bytecode tools are broken"
            yield CheckResult(SYSTEM, "FAIL", text, "install Python 3.10.1 or newer and use it")
        elif version:
            yield CheckResult(SYSTEM, "PASS", f"{whose} Python is {version}")


def wsl_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    if facts.host.wsl:
        text = "this is WSL: pinned memory is limited, and cards have no peer access"
        yield CheckResult(SYSTEM, "WARN", text, "use one card, or Linux without WSL")


def shared_memory_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    size, free = facts.host.shm_mib, facts.host.shm_free_mib
    if free is not None and free < FULL_SHM_MIB < size:
        text = f"/dev/shm is full: {free} of its {size} MiB are free"
        fix = "find what fills it (ls -lS /dev/shm), and delete files that no running program uses"
        yield CheckResult(SYSTEM, "FAIL", text, fix)
    elif size < SMALL_SHM_MIB:
        text = f"/dev/shm has {size} MiB; workers and NCCL exchange data there"
        verdict: CheckVerdict = "FAIL" if len(facts.gpus) > 1 else "WARN"
        yield CheckResult(SYSTEM, verdict, text, LARGER_SHM)
    else:
        yield CheckResult(SYSTEM, "PASS", f"/dev/shm has {size} MiB")


def open_file_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    if 0 < facts.host.open_files < FEW_FILES:
        text = f"only {facts.host.open_files} files can be open, and each connection uses one"
        yield CheckResult(SYSTEM, "WARN", text, "ulimit -n 65536, or LimitNOFILE=65536 in the unit")


def card_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    if not facts.gpus:
        if facts.wants_gpu:
            text = "no NVIDIA GPU is visible, but the engine is built for CUDA"
            fix = "run `nvidia-smi`; check CUDA_VISIBLE_DEVICES; install the driver"
            yield CheckResult(GPUS, "FAIL", text, fix)
        return
    unfit = [gpu for gpu in facts.gpus if card_problem(gpu)]
    for gpu in facts.gpus:
        major, minor = gpu.compute_capability
        name = f"GPU {gpu.index} {gpu.name} (SM{major}{minor})"
        bad = card_problem(gpu)
        if bad:
            # The planner leaves it out itself, as long as another card remains.
            verdict: CheckVerdict = "WARN" if len(facts.gpus) > len(unfit) else "FAIL"
            text = f"{name} cannot be used: {bad.fact}"
            yield CheckResult(GPUS, verdict, text, bad.remedy)
        else:
            yield CheckResult(GPUS, "PASS", f"{name}: {gpu.free_mib} of {gpu.total_mib} MiB free")
    if any(gpu.persistence is False for gpu in facts.gpus):
        text = (
            "persistence mode is off: the driver unloads between starts and takes seconds to "
            "load again"
        )
        yield CheckResult(GPUS, "WARN", text, "sudo systemctl enable --now nvidia-persistenced")


def foreign_memory_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    known = {pid for pid, _ in facts.orphans}
    for gpu in facts.gpus:
        others = [user for user in gpu.users if user[0] not in known and user[2] > NOTABLE_MIB]
        for pid, name, mib in others:
            text = f"GPU {gpu.index}: {name} (pid {pid}) holds {mib} MiB"
            yield CheckResult(GPUS, "WARN", text, f"stop it if it is not needed: kill {pid}")


def all_reduce_checks(facts: DoctorFacts) -> Iterator[CheckResult]:
    """Report the result of the all-reduce check.

    Cards that exchange wrong data answer NVML well, but the engine on them answers nonsense.
    """
    if facts.all_reduce is None:
        return
    result, name = facts.all_reduce, "all-reduce over the plan's cards"
    if result.verdict == "right":
        yield CheckResult(GPUS, "PASS", f"{name} was correct when it was checked")
    elif result.verdict == "unclear":
        fix = "see the daemon's log; delete all-reduce.json in its cache folder to check again"
        yield CheckResult(GPUS, "WARN", f"{name} could not be checked: {result.text}", fix)
    else:
        how = "were wrong" if result.verdict == "wrong" else "did not end"
        fix = "check `nvidia-smi topo -p2p r`, IOMMU and ACS; each start checks again"
        yield CheckResult(GPUS, "WARN", f"{name} {how}: {result.by}, {result.text}", fix)
