"""How a vLLM plan all-reduces over several cards."""

from __future__ import annotations

from caovand.core.facts.all_reduce import AllReduce
from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Plan
from caovand.engines.vllm.flags.spelling import count
from caovand.engines.vllm.memory.settings import gpus_of

CUSTOM_ALL_REDUCE = """
from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce
own = CustomAllreduce(group=group, device=device)
custom = None if own.disabled else own.custom_all_reduce
"""
"""vLLM disables it itself if cards cannot reach each other, and uses it for tensors up to 8 MiB
only."""
SETTINGS = ("NCCL_", "VLLM_SKIP_P2P_CHECK", "CUDA_VISIBLE_DEVICES")


def all_reduce(plan: Plan, inventory: Inventory) -> AllReduce | None:
    """The all-reduce to check; None for one card here, and for a CPU build."""
    wanted = count(plan.value("tensor_parallel_size")) or 1
    ranks = min(wanted, len(gpus_of(plan, inventory)))  # the others belong to another node
    if inventory.engine.build != "cuda" or ranks < 2:
        return None
    settings = {
        name: str(setting.value)
        for name, setting in plan.env.items()
        if name.startswith(SETTINGS) and setting.value is not None
    }
    return AllReduce(
        ranks, "" if plan.value("disable_custom_all_reduce") else CUSTOM_ALL_REDUCE, settings
    )
