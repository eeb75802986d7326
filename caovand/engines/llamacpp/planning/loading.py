"""The way in which weights get into host memory, and the threads that read them there."""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.plan import Setting
from caovand.engines.common.gguf import sizing


def choose_numa(
    inventory: Inventory, gpus: Sequence[Gpu], sized: sizing.PlacedLoad
) -> dict[str, Setting]:
    """The spread of the threads that read weights in host memory over the NUMA nodes."""
    nodes = inventory.host.numa_nodes
    if nodes < 2 or (gpus and sized.whole):
        return {}
    reason = (
        f"threads on all {nodes} NUMA nodes: each stays on its node, and mapped weights are read "
        "into the memory of the node that first uses them"
    )
    return {"numa": Setting("distribute", "policy", reason)}


def choose_load_mode(sized: sizing.PlacedLoad, gpus: Sequence[Gpu]) -> Setting:
    if gpus and not sized.whole:
        return Setting(
            "none",
            "policy",
            "Linux would evict mapped weights whenever host memory gets tight, "
            "and every token would wait for the disk",
        )
    if any(gpu.unified for gpu in gpus):
        return Setting("none", "policy", "mapped weights would be in unified memory twice")
    return Setting(
        "mmap", "policy", "mapped weights stay in the file cache, so the next start is quick"
    )
