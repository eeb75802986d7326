"""The choices that all planners for GGUF files share: loads to compare, and reasons for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from caovand.core.config.schema import Config
from caovand.core.plan import Setting
from caovand.engines.common.gguf.sizes import GgufLoad, why_undividable
from caovand.engines.common.gguf.sizing import LoadSizer, PlacedLoad
from caovand.engines.common.gguf.slots import choose, halve_slots, max_slots, usual_slots

EIGHT_BITS = "q8_0"
"""The cache type that costs next to nothing in quality."""


def choose_slots(config: Config, sizer: LoadSizer) -> Setting:
    """The number of requests at once: the configured one, else the workload's."""
    if config.policy.max_num_seqs is not None:
        return Setting(config.policy.max_num_seqs, "user", "[policy] max_num_seqs")
    reason = f"requests at once for workload {config.policy.workload}; each gets the full context"
    return Setting(usual_slots(sizer), "policy", reason)


def candidate_loads(
    sizer: LoadSizer, load: GgufLoad, slots: Setting, kinds: Sequence[Setting]
) -> tuple[GgufLoad, ...]:
    """The preferred load, and cheaper ones that may keep every layer on the cards.

    They have an 8-bit cache, unless one of its `kinds` is configured, and fewer requests at once,
    unless their number is.
    """
    if not sizer.gpus:
        return (load,)
    loads = [load]
    divides = not why_undividable(EIGHT_BITS, sizer.model.head_dim)
    if divides and load.flash and all(kind.origin == "policy" for kind in kinds):
        loads.append(replace(load, keys=EIGHT_BITS, values=EIGHT_BITS))
    few = zip(*map(halve_slots, loads), strict=True) if slots.origin == "policy" else ()
    return (*loads, *chain.from_iterable(few))


def choose_open(sizer: LoadSizer, loads: Sequence[GgufLoad], slots: Setting) -> PlacedLoad:
    """The best load with a context that is worth its price; more requests only if none are
    stated."""
    most = max_slots(sizer) if slots.origin == "policy" else loads[0].slots
    return choose(sizer, loads, most)


def slots_of(sized: PlacedLoad, preferred: Setting) -> Setting:
    """The requests at once of the chosen load, and why they differ from the preferred number."""
    slots, layers = sized.load.slots, "layers" if sized.whole else "more layers"
    if slots == preferred.value:
        return preferred
    if slots > preferred.value:
        reason = "as many requests as memory has room for; each gets the full context"
    else:
        reason = (
            f"more requests would push {layers} off the cards or leave each request a short context"
        )
    return Setting(slots, "policy", reason)


def cache_type_of(sized: PlacedLoad, preferred: Setting) -> Setting:
    """The cache type of the chosen load, and why it is not the preferred one."""
    if sized.load.keys == preferred.value:
        return preferred
    reason = (
        "a half-precision cache would push layers off the cards, leave a short context, or have"
        " room for far fewer requests"
    )
    return Setting(sized.load.keys, "policy", reason)


def why_context(sizer: LoadSizer, sized: PlacedLoad, workload: str, free_memory: str) -> str:
    """Why the chosen load has this context; `free_memory` describes how much host memory it may
    use.
    """
    context = sized.load.context
    if context == sizer.model.max_model_len:
        return "the model's own limit"
    if not sized.fits:
        return "no context fits; trying the smallest useful one"
    if sizer.gpus and sized.whole:
        return "the longest with every layer on the cards"
    if sizer.gpus:
        return f"enough for workload {workload}; a longer one would push layers off the cards"
    if context == sizer.longest_on_host(sizer.workload.sufficient_context):
        return "the CPU needs many minutes to read a longer prompt"
    return f"the longest that fits {sizer.host.available_mib} MiB: {free_memory}"
