"""The engine's environment: quiet, offline if the model is local, sized to the machine, and without
kernels that nothing can compile here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from caovand.core.facts.inventory import device_name
from caovand.core.plan import Plan, Setting
from caovand.engines.common.speeds import all_linked
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import DRAFTER, LM_HEAD, MARLIN_INPUT
from caovand.engines.vllm.kernels import compilers
from caovand.engines.vllm.machine.attention import NO_NVCC
from caovand.engines.vllm.machine.capabilities import (
    HOPPER,
    float_weights,
    never_runs,
    order_problem,
)
from caovand.engines.vllm.memory.settings import gpus_of
from caovand.engines.vllm.memory.shards import PARTITION, pinned_gib
from caovand.engines.vllm.planning.devices import choose_gpus
from caovand.engines.vllm.planning.drafters import plugin_keeps_states
from caovand.engines.vllm.planning.int8 import ACTIVATIONS, HEAD, int8_drafter
from caovand.engines.vllm.planning.parallel import layer_partition
from caovand.engines.vllm.planning.partial_plan import PartialPlan, offloaded_gib, policy, user
from caovand.engines.vllm.planning.precision import cannot_build

SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
EXPERTS = {
    "": "VLLM_USE_FLASHINFER_MOE_FP16",
    "fp8": "VLLM_USE_FLASHINFER_MOE_FP8",
    "fbgemm_fp8": "VLLM_USE_FLASHINFER_MOE_FP8",
    "modelopt": "VLLM_USE_FLASHINFER_MOE_FP8",
    "compressed-tensors": "VLLM_USE_FLASHINFER_MOE_FP8",
    "modelopt_fp4": "VLLM_USE_FLASHINFER_MOE_FP4",
    "mxfp4": "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16",
}
"""The variable that turns FlashInfer's expert kernels off, by the experts' quantisation."""


def own_toolkit(partial: PartialPlan) -> Setting | None:
    """CUDA_HOME: an inherited one may belong to another CUDA than the engine's."""
    home = partial.engine.cuda_home
    if not partial.cuda or not home or "CUDA_PATH" in dict(partial.config.engine.env):
        return None
    return policy(home, "the engine's own compiler, for the CUDA version of its torch")


def sampler(partial: PartialPlan) -> Setting | None:
    """VLLM_USE_FLASHINFER_SAMPLER."""
    if not cannot_build(partial):
        return None
    return policy(
        "0", f"PyTorch samples: FlashInfer's sampler is compiled at the start, and {NO_NVCC}"
    )


def experts(partial: PartialPlan) -> Iterator[tuple[str, Setting]]:
    """The variable that turns FlashInfer's expert kernels off if they are not compiled.

    Releases without these variables use FlashInfer for experts only if nvcc is there, or, on
    Hopper, only after Triton.
    """
    newest = max((gpu.compute_capability for gpu in partial.cards), default=(0, 0))
    kind = partial.model.quantization or str(partial.verbatim.get("quantization") or "")
    name = EXPERTS.get(kind.removesuffix("_per_tensor").removesuffix("_per_block"))
    if not partial.cuda or not partial.model.experts or not name or newest < HOPPER:
        return
    if partial.engine.release >= releases.EXPERTS_BY_FLAG or partial.engine.jit_cache:
        return
    if cannot_build(partial):
        reason = f"FlashInfer's expert kernels are compiled at the start, and {NO_NVCC}"
    elif newest[0] == HOPPER[0]:
        reason = (
            "FlashInfer's expert kernels take minutes to compile at the first start; vLLM has "
            "precompiled ones for this card"
        )
    else:
        return
    yield name, policy("0", reason)


JOBS = "MAX_JOBS"
THREADS = "CAOVAN_COMPILE_THREADS"
"""Read by the plugin in each worker, since vLLM sets torch.compile's own variable to 1."""
ITS_OWN = "TORCHINDUCTOR_COMPILE_THREADS"
MAX_COMPILE_THREADS = 16
THREAD_MIB = 1024
"""Memory of a process with PyTorch and Triton that compiles one kernel, and of its assembler."""
WORKER_MIB = 4096
"""Host memory of a worker, and with the first one of the server and the engine core."""


def jobs(partial: PartialPlan) -> Setting | None:
    """MAX_JOBS."""
    if not partial.cuda:
        return None  # nothing is built there that uses it
    count = compilers(partial.host.cpus, partial.host.ram_mib)
    return policy(
        str(count),
        f"kernels built here: one compiler for each of {partial.host.cpus} cores, as far as "
        f"{partial.host.ram_mib} MiB of RAM go",
    )


def threads(partial: PartialPlan) -> Setting | None:
    """Threads of torch.compile in each worker; None if none compiles or no plugin sets them.

    Every card has its own worker, and all of them compile at the same time. vLLM compiles with one
    thread, and more were not measured on any card yet: only mode fast uses them.
    """
    typed = dict(partial.config.engine.env).get(ITS_OWN)
    if typed is not None:
        return user(typed, f"[engine] env {ITS_OWN}, which vLLM sets to 1 by default")
    compiles = partial.cuda and partial.engine.plugin and not partial.value("enforce_eager")
    if not compiles or partial.mode != "fast":
        return None
    workers = max(1, len(partial.gpus))
    cores = max(1, partial.host.cpus // workers)
    left_mib = max(0, memory_left_mib(partial, workers)) // workers
    allowed = {
        f"{partial.host.cpus} cores": cores,
        f"{left_mib} MiB of host memory that loading leaves": max(1, left_mib // THREAD_MIB),
        f"at most {MAX_COMPILE_THREADS}": MAX_COMPILE_THREADS,
    }
    reason, count = min(allowed.items(), key=lambda bound: bound[1])
    each = "" if workers == 1 else f" for each of {workers} workers"
    return policy(str(count), f"mode fast: threads of torch.compile{each}: {reason}")


def memory_left_mib(partial: PartialPlan, workers: int) -> int:
    """Host memory that a start leaves, after its processes, files read and offloaded weights.

    Not based on current free memory: a reload would yield another plan, and restart the engine.
    """
    kept = offloaded_gib(partial)
    kept_mib = int(pinned_gib(kept, partial.model, max(workers, 1)) / max(workers, 1) * 1024)
    taken_mib = partial.model.size() // (1 << 20) + workers * (WORKER_MIB + kept_mib)
    return partial.host.ram_mib - taken_mib


MAX_THREADS = 12
PCIE_RANKS = (2, 4, 8)
STATES = "CAOVAN_STATES"
"""Makes the plugin end an engine in which its fixes of recurrent states are not active."""
ATTENTION = "CAOVAN_ATTENTION"
"""The attention that the plugin replaces: off, read (of a cache), all (writing it, too)."""
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def environment(partial: PartialPlan) -> dict[str, Setting]:
    """Every variable with its reason; the operator's own from [engine] env win."""
    decided = {
        name: setting for name, rule in RULES for setting in [rule(partial)] if setting is not None
    }
    decided.update(experts(partial))
    typed = {name: user(value, "[engine] env") for name, value in partial.config.engine.env}
    return {**decided, **typed}


def _always(value: str, reason: str) -> Callable[[PartialPlan], Setting | None]:
    return lambda partial: policy(value, reason)


def _on_cuda(value: str, reason: str) -> Callable[[PartialPlan], Setting | None]:
    return lambda partial: policy(value, reason) if partial.cuda else None


def _offline(partial: PartialPlan) -> Setting | None:
    if not partial.model.folder:
        return None
    return policy("1", "the model is a local folder: a start must not wait for the network")


def _threads(partial: PartialPlan) -> Setting | None:
    cores = min(partial.host.cpus, MAX_THREADS)
    if not partial.cuda:
        return None  # the CPU build binds its own threads to cores; this would fight it
    return policy(str(cores), f"physical cores, at most {MAX_THREADS}: {partial.host.cpus} here")


def _shares_graphs(partial: PartialPlan) -> bool:
    """Whether vLLM's own all-reduce records CUDA graphs whose memory the cards then share.

    It exports that memory with cudaIpcGetMemHandle, which rejects expandable segments, so the
    engine dies while capturing CUDA graphs (vllm#42609, also on pairs of RTX 3090 and 5090).
    """
    alone = partial.count("tensor_parallel_size") < 2
    return not (
        alone or partial.value("disable_custom_all_reduce") or partial.value("enforce_eager")
    )


def _expandable(partial: PartialPlan) -> Setting | None:
    if not partial.cuda or partial.verbatim.get("enable_sleep_mode"):
        return None  # sleep mode has an allocator that refuses expandable segments
    if _shares_graphs(partial):
        return None
    return policy("expandable_segments:True", "less memory is lost to fragmentation")


def allocator_warnings(partial: PartialPlan) -> list[str]:
    """Warnings about expandable segments that the operator sets where they end the engine."""
    typed = dict(partial.config.engine.env)
    asking = [name for name in ALLOCATOR if "expandable_segments:True" in typed.get(name, "")]
    if not partial.cuda or not asking or not _shares_graphs(partial):
        return []
    return [
        f"[engine] env {asking[0]} enables expandable segments, which vLLM's own all-reduce "
        "cannot share between cards: the engine would crash while capturing graphs; remove it, "
        "or add --disable-custom-all-reduce to extra_args"
    ]


def _visible(partial: PartialPlan) -> Setting | None:
    if not partial.cuda:
        return None
    names = ",".join(device_name(gpu) for gpu in partial.gpus)
    usable = len(choose_gpus(partial.config, partial.inventory, partial.values))
    reason = "the cards of this plan, as nvidia-smi numbers them"
    if usable != len(partial.gpus):
        reason = (
            f"the {len(partial.gpus)} of {usable} cards with the most free memory: the plan "
            "needs no more cards"
        )
    ours = partial.config.engine.gpus is None
    if ours and len({gpu.compute_capability for gpu in partial.gpus}) > 1:
        reason += (
            "; the oldest comes first, because vLLM chooses the kernels for all cards by the "
            "first, and an older card may not run those of a newer one"
        )
    return policy(names, reason)


def order_warnings(partial: PartialPlan, plan: Plan) -> list[str]:
    """A warning if the operator's order of cards may select kernels that the oldest cannot run."""
    gpus, model = gpus_of(plan, partial.inventory), partial.model
    weights = float_weights(model, str(plan.value("quantization") or ""))
    problem = order_problem(gpus, weights, str(plan.value("kv_cache_dtype") or ""))
    if not problem or never_runs(gpus, weights):  # which is a conflict
        return []
    return [f"the engine can fail to {problem.cannot}: {problem.fact}; {problem.remedy}"]


def _recursion(partial: PartialPlan) -> Setting | None:
    if not partial.turing:
        return None
    return policy("50000", "tracing this model for Turing overflows Python's default of 1,000")


def _uncompiled(partial: PartialPlan) -> Setting | None:
    if partial.cuda or not (partial.value("enforce_eager") or partial.warms_up_stages):
        return None
    return policy(
        "1",
        "avoids a compilation at the first logprobs request, which would crash the engine if "
        "Python.h is missing",
    )


def _kernels(partial: PartialPlan) -> Setting | None:
    if not partial.cuda or partial.config.engine.plugin:
        return None
    return user("off", "[engine] plugin is false")


def _states(partial: PartialPlan) -> Setting | None:
    if not plugin_keeps_states(partial) or not partial.value("enable_prefix_caching"):
        return None
    return policy(
        "required",
        "without the plugin's fixes the prefix cache would corrupt answers: the engine exits "
        "instead",
    )


def _pcie_all_reduce(partial: PartialPlan) -> Setting | None:
    """The variables of FlashInfer's all-reduce over PCIe. We never ran it on cards, so only mode
    fast uses it. It is used inside CUDA graphs."""
    count = partial.count("tensor_parallel_size")
    here = not partial.inventory.others and not all_linked(partial.gpus)
    if partial.mode != "fast" or count not in PCIE_RANKS or not here or not partial.cuda:
        return None
    if partial.engine.release < releases.PCIE_ALL_REDUCE or partial.value("enforce_eager"):
        return None
    if cannot_build(partial) or not partial.engine.flashinfer:
        return None
    return policy(
        "1",
        f"mode fast: the {count} cards exchange data over PCIe, for which FlashInfer has an"
        " all-reduce that is measured once while starting; others found it a third faster on 8 T10",
    )


RULES: tuple[tuple[str, Callable[[PartialPlan], Setting | None]], ...] = (
    ("VLLM_NO_USAGE_STATS", _always("1", "turns usage reports off")),
    ("DO_NOT_TRACK", _always("1", "turns usage reports off")),
    ("VLLM_LOGGING_COLOR", _always("0", "caovan parses the log, so no colour codes")),
    ("HF_HUB_OFFLINE", _offline),
    ("TRANSFORMERS_OFFLINE", _offline),
    ("OMP_NUM_THREADS", _threads),
    ("VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC", _pcie_all_reduce),
    (JOBS, jobs),
    (THREADS, threads),
    ("CUDA_DEVICE_ORDER", _on_cuda("PCI_BUS_ID", "card indices match nvidia-smi")),
    ("CUDA_VISIBLE_DEVICES", _visible),
    (ALLOCATOR[0], _expandable),
    ("TRITON_CACHE_AUTOTUNING", _on_cuda("1", "keeps autotuning results between starts")),
    (
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        _on_cuda("1", "detecting a card must not open a CUDA context in the parent process"),
    ),
    ("CAOVAN_RECURSION_LIMIT", _recursion),
    # Not TORCH_COMPILE_DISABLE, with which vLLM leaves the compile mode that stages need.
    ("TORCHDYNAMO_DISABLE", _uncompiled),
    ("CAOVAN_KERNELS", _kernels),
    (STATES, _states),
    (PARTITION, layer_partition),
    (MARLIN_INPUT, ACTIVATIONS.setting),
    (LM_HEAD, HEAD.setting),
    (DRAFTER, int8_drafter),
    (SAMPLER, sampler),
    ("CUDA_HOME", own_toolkit),
)
