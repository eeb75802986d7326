"""The engine's environment: quiet, offline where the model is local, sized to the machine."""

from __future__ import annotations

from collections.abc import Callable

from caovand.core.facts.inventory import device_name
from caovand.core.plan import Setting
from caovand.engines.vllm.memory.stages import PARTITION
from caovand.engines.vllm.planning import activations, compilers, toolchain
from caovand.engines.vllm.planning.devices import choose_gpus
from caovand.engines.vllm.planning.draft import Draft, policy, user
from caovand.engines.vllm.planning.partition import layer_partition

MAX_THREADS = 12
STATES = "CAOVAN_STATES"
"""Makes the plugin end an engine in which its fixes of recurrent states do not act."""
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def environment(draft: Draft) -> dict[str, Setting]:
    """Every variable with its reason; the operator's own from [engine] env win."""
    decided = {
        name: setting for name, rule in RULES for setting in [rule(draft)] if setting is not None
    }
    decided.update(toolchain.experts(draft))
    typed = {name: user(value, "[engine] env") for name, value in draft.config.engine.env}
    return {**decided, **typed}


def _always(value: str, reason: str) -> Callable[[Draft], Setting | None]:
    return lambda draft: policy(value, reason)


def _on_cuda(value: str, reason: str) -> Callable[[Draft], Setting | None]:
    return lambda draft: policy(value, reason) if draft.cuda else None


def _offline(draft: Draft) -> Setting | None:
    if not draft.model.folder:
        return None
    return policy("1", "the model is a local folder: a start must not wait for the network")


def _threads(draft: Draft) -> Setting | None:
    cores = min(draft.host.cpus, MAX_THREADS)
    if not draft.cuda:
        return None  # the CPU build binds its own threads to cores; this would fight it
    return policy(str(cores), f"physical cores, at most {MAX_THREADS}: {draft.host.cpus} here")


def _shares_graphs(draft: Draft) -> bool:
    """Whether vLLM's own all-reduce records CUDA graphs whose memory the cards then share.

    It hands that memory over by cudaIpcGetMemHandle, which refuses expandable segments: the engine
    ends while capturing (vllm#42609, also reported for pairs of RTX 3090 and 5090).
    """
    alone = draft.count("tensor_parallel_size") < 2
    return not (alone or draft.value("disable_custom_all_reduce") or draft.value("enforce_eager"))


def _expandable(draft: Draft) -> Setting | None:
    if not draft.cuda or draft.given.get("enable_sleep_mode"):
        return None  # sleep mode brings an allocator that refuses expandable segments
    if _shares_graphs(draft):
        return None
    return policy("expandable_segments:True", "less memory is lost to fragments")


def allocator_warnings(draft: Draft) -> list[str]:
    """Expandable segments that the operator asks for where they end the engine."""
    typed = dict(draft.config.engine.env)
    asking = [name for name in ALLOCATOR if "expandable_segments:True" in typed.get(name, "")]
    if not draft.cuda or not asking or not _shares_graphs(draft):
        return []
    return [
        f"[engine] env {asking[0]} asks for expandable segments, which vLLM's own all-reduce cannot"
        " share between cards: it ends the engine while capturing graphs; remove it, or add"
        " --disable-custom-all-reduce to extra_args"
    ]


def _visible(draft: Draft) -> Setting | None:
    if not draft.cuda:
        return None
    names = ",".join(device_name(gpu) for gpu in draft.gpus)
    usable = len(choose_gpus(draft.config, draft.inventory, draft.given))
    if usable == len(draft.gpus):
        return policy(names, "the cards this plan uses, as nvidia-smi names them")
    return policy(
        names,
        f"the {len(draft.gpus)} of {usable} cards with the most free memory: the plan needs no"
        " more",
    )


def _recursion(draft: Draft) -> Setting | None:
    if not draft.turing:
        return None
    return policy("50000", "tracing this model for Turing overflows Python's default of 1,000")


def _uncompiled(draft: Draft) -> Setting | None:
    if draft.cuda or not (draft.value("enforce_eager") or draft.warms_up_stages):
        return None
    return policy(
        "1",
        "avoids a compilation at the first logprobs request, which ends the engine if Python.h is"
        " missing",
    )


def _kernels(draft: Draft) -> Setting | None:
    if not draft.cuda or draft.config.engine.plugin:
        return None
    return user("off", "[engine] plugin is false")


def _states(draft: Draft) -> Setting | None:
    if not draft.fixes_keep_states or not draft.value("enable_prefix_caching"):
        return None
    return policy(
        "required",
        "without the plugin's fixes the prefix cache would spoil answers: the engine ends instead",
    )


RULES: tuple[tuple[str, Callable[[Draft], Setting | None]], ...] = (
    ("VLLM_NO_USAGE_STATS", _always("1", "nothing is reported to anyone")),
    ("DO_NOT_TRACK", _always("1", "nothing is reported to anyone")),
    ("VLLM_LOGGING_COLOR", _always("0", "caovan parses the log, so no colour codes")),
    ("HF_HUB_OFFLINE", _offline),
    ("TRANSFORMERS_OFFLINE", _offline),
    ("OMP_NUM_THREADS", _threads),
    (compilers.JOBS, compilers.jobs),
    (compilers.THREADS, compilers.threads),
    ("CUDA_DEVICE_ORDER", _on_cuda("PCI_BUS_ID", "card indices mean what nvidia-smi shows")),
    ("CUDA_VISIBLE_DEVICES", _visible),
    (ALLOCATOR[0], _expandable),
    ("TRITON_CACHE_AUTOTUNING", _on_cuda("1", "autotuning results are kept between starts")),
    (
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        _on_cuda("1", "looking for a card must not open a CUDA context in the parent"),
    ),
    ("CAOVAN_RECURSION_LIMIT", _recursion),
    # Not TORCH_COMPILE_DISABLE, for which vLLM leaves the compile mode that stages need.
    ("TORCHDYNAMO_DISABLE", _uncompiled),
    ("CAOVAN_KERNELS", _kernels),
    (STATES, _states),
    (PARTITION, layer_partition),
    (activations.VARIABLE, activations.input_type),
    (toolchain.SAMPLER, toolchain.sampler),
    ("CUDA_HOME", toolchain.own_toolkit),
)
