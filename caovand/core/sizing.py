"""How much is asked of the cards: sequences, step size, context, share, offloading.

They hang together: the share leaves a reserve that grows with the context, and the context is
what the share leaves room for. First a generous step is tried, then a lean one without graphs,
then one with weights in host memory; the first that holds a usable context is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from caovand.core.config import Config
from caovand.core.flags import whole_number
from caovand.core.inventory import Gpu, ModelCard
from caovand.core.memory import (
    DRAFTING_SAMPLER_BYTES,
    MIB,
    Load,
    free_share,
    kv_bytes,
    lacking_gib,
    layout_for,
    longest_context,
    spare,
    utilization,
)

GENEROUS_CONTEXT, LEAN_CONTEXT, SMALLEST_CONTEXT = 8192, 1024, 512
GENEROUS_BATCH, LEAN_BATCH = 8192, 2048
SAMPLER_SHARE = 0.02
MOST_SEQUENCES, TURING_SEQUENCES = 256, 2


@dataclass(frozen=True)
class Wishes:
    """What the operator asked for, None where the policy decides."""

    context: int | None = None
    sequences: int | None = None
    batch_tokens: int | None = None
    utilization: float | None = None
    eager: bool = False
    offload_gib: float = 0.0


@dataclass(frozen=True)
class Sizing:
    """The load that was chosen, how ("generous", "lean", "offloaded"), and whether it fits."""

    load: Load
    step: str
    fits: bool

    @property
    def rank(self) -> tuple[bool, int, int, float]:
        """The better of two sizings has the higher one."""
        steps = ("offloaded", "lean", "generous")
        load = self.load
        return self.fits, steps.index(self.step), load.context, -load.offload_gib


def wishes_of(config: Config, given: Mapping[str, Any]) -> Wishes:
    """Typed keys, and verbatim flags, which win over them."""
    share = given.get("gpu_memory_utilization", config.policy.gpu_memory_utilization)
    offload = given.get("cpu_offload_gb")

    def count(name: str, typed: int | None) -> int | None:
        if name not in given:
            return typed
        number = whole_number(given[name])
        return number if number and number > 0 else None  # -1 and "auto" leave it to vLLM

    return Wishes(
        context=count("max_model_len", config.model.max_model_len),
        sequences=count("max_num_seqs", config.policy.max_num_seqs),
        batch_tokens=count("max_num_batched_tokens", config.policy.max_num_batched_tokens),
        utilization=float(share) if isinstance(share, (int, float)) else None,
        eager=bool(given.get("enforce_eager")) or config.policy.cuda_graphs == "none",
        offload_gib=float(offload) if isinstance(offload, (int, float)) else 0.0,
    )


def sequences_for(model: ModelCard, gpus: Sequence[Gpu], turing: bool) -> int:
    """How many sequences to decode at once where nobody said."""
    if turing:
        return TURING_SEQUENCES
    card = min(gpu.total_mib for gpu in gpus) * MIB
    each = max(model.vocab_size, 1) * DRAFTING_SAMPLER_BYTES
    count = MOST_SEQUENCES
    while count > 1 and count * each > SAMPLER_SHARE * card:
        count //= 2
    return count


def choose(
    base: Load, model: ModelCard, gpus: Sequence[Gpu], wishes: Wishes, ram_mib: int
) -> Sizing:
    """The first step that holds a usable context; the leanest where none does."""
    base = replace(base, offload_gib=wishes.offload_gib)
    sizings = []
    for step, load, usable in _steps(base, model, gpus, wishes):
        sized = _with_context(load, model, gpus, wishes)
        wanted = wishes.context or min(usable, model.max_model_len)
        sizings.append(Sizing(sized, step, sized.context >= wanted and holds(sized, model, gpus)))
        if sizings[-1].fits:
            return sizings[-1]
    offloaded = None if wishes.offload_gib else _offloaded(base, model, gpus, wishes, ram_mib)
    return Sizing(offloaded, "offloaded", True) if offloaded else sizings[-1]


def holds(load: Load, model: ModelCard, gpus: Sequence[Gpu]) -> bool:
    """Whether the memory is free and one request of the context fits."""
    return load.utilization <= free_share(gpus) and lacking_gib(model, load, gpus) == 0


def _steps(
    base: Load, model: ModelCard, gpus: Sequence[Gpu], wishes: Wishes
) -> Iterator[tuple[str, Load, int]]:
    """Name, load and the context that makes it worth taking."""
    generous = replace(
        base,
        sequences=wishes.sequences or sequences_for(model, gpus, base.turing),
        batch_tokens=wishes.batch_tokens or GENEROUS_BATCH,
        eager=wishes.eager,
    )
    yield "generous", generous, GENEROUS_CONTEXT
    sequences, batch = wishes.sequences or 1, wishes.batch_tokens or LEAN_BATCH
    lean = replace(generous, sequences=sequences, batch_tokens=batch, eager=True)
    yield "lean", lean, LEAN_CONTEXT


def _with_context(load: Load, model: ModelCard, gpus: Sequence[Gpu], wishes: Wishes) -> Load:
    """The load with its context and share decided."""
    if wishes.utilization is None:
        context = wishes.context or longest_context(model, load, gpus) or SMALLEST_CONTEXT
        load = replace(load, context=context)
        return replace(load, utilization=utilization(load, gpus))
    load = replace(load, utilization=wishes.utilization)
    room = int(spare(kv_bytes(model, load, gpus)))
    longest = layout_for(model, load).longest(room, model.max_model_len)
    return replace(load, context=wishes.context or longest or SMALLEST_CONTEXT)


def _offloaded(
    base: Load, model: ModelCard, gpus: Sequence[Gpu], wishes: Wishes, ram_mib: int
) -> Load | None:
    """The smallest useful load with what does not fit in host memory.

    None where that is short, and where the cards could hold the weights: then it is the
    operator's context or share that does not fit, and a slow engine is not what was meant.
    """
    least = min(SMALLEST_CONTEXT, model.max_model_len)
    free = replace(base, context=least, sequences=1, batch_tokens=least, eager=True)
    if holds(replace(free, utilization=utilization(free, gpus)), model, gpus):
        return None
    load = replace(
        base,
        context=wishes.context or least,
        sequences=wishes.sequences or 1,
        batch_tokens=wishes.batch_tokens or SMALLEST_CONTEXT,
        eager=True,
    )
    load = replace(load, utilization=wishes.utilization or utilization(load, gpus))
    lacking = ceil(lacking_gib(model, load, gpus) + 0.25)
    if lacking * 1024 * load.tensor_parallel > ram_mib * 0.8:
        return None
    load = replace(load, offload_gib=float(lacking))
    return load if holds(load, model, gpus) else None
