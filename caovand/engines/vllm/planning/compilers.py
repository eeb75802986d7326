"""How many compilers may run at once: kernels that are built here, and torch.compile."""

from __future__ import annotations

from caovand.core.plan import Setting
from caovand.engines.vllm.kernels import compilers
from caovand.engines.vllm.planning.draft import Draft, policy, user

JOBS = "MAX_JOBS"
THREADS = "CAOVAN_COMPILE_THREADS"
"""Read by the plugin in each worker: torch.compile's own variable is set to 1 by vLLM."""
ITS_OWN = "TORCHINDUCTOR_COMPILE_THREADS"
MAX_THREADS = 16
THREAD_MIB = 1024
"""A process with PyTorch and Triton in it that compiles one kernel, and its assembler."""
WORKER_MIB = 4096
"""Host memory of a worker, and with the first one of the server and the engine core."""


def jobs(draft: Draft) -> Setting | None:
    """MAX_JOBS."""
    if not draft.cuda:
        return None  # nothing is built there that asks for it
    count = compilers(draft.host.cpus, draft.host.ram_mib)
    return policy(
        str(count),
        f"kernels built here: one compiler for each of {draft.host.cpus} cores, as far as"
        f" {draft.host.ram_mib} MiB of RAM go",
    )


def threads(draft: Draft) -> Setting | None:
    """Threads of torch.compile in each worker; None where none compiles, or no plugin sets them.

    Every card has a worker of its own, and all of them compile at the same time. vLLM compiles
    with one thread, and more were measured on no card yet: only mode fast takes them.
    """
    typed = dict(draft.config.engine.env).get(ITS_OWN)
    if typed is not None:
        return user(typed, f"[engine] env {ITS_OWN}, which vLLM by itself sets to 1")
    compiles = draft.cuda and draft.engine.plugin and not draft.value("enforce_eager")
    if not compiles or draft.mode != "fast":
        return None
    workers = max(1, len(draft.gpus))
    cores = max(1, draft.host.cpus // workers)
    left_mib = max(0, memory_left_mib(draft, workers)) // workers
    allowed = {
        f"{draft.host.cpus} cores": cores,
        f"{left_mib} MiB of host memory that loading leaves": max(1, left_mib // THREAD_MIB),
        f"at most {MAX_THREADS}": MAX_THREADS,
    }
    why, count = min(allowed.items(), key=lambda one: one[1])
    each = "" if workers == 1 else f" for each of {workers} workers"
    return policy(str(count), f"mode fast: threads of torch.compile{each}: {why}")


def memory_left_mib(draft: Draft, workers: int) -> int:
    """Host memory next to a start: that of its processes, of the files read, of weights kept.

    Not of what happens to be free: a reload would find another plan, and restart the engine.
    """
    offloaded = draft.value("cpu_offload_gb")
    kept_mib = int(float(offloaded) * 1024) if isinstance(offloaded, (int, float)) else 0
    taken_mib = draft.model.size() // (1 << 20) + workers * (WORKER_MIB + kept_mib)
    return draft.host.ram_mib - taken_mib
