"""How much is asked of the cards: sequences, step size, context, share, offloading.

They hang together: the share leaves a reserve that grows with the context, and the context is
what the share leaves room for. Where nobody named one it is the longest that fits with CUDA graphs,
in small steps if need be; without graphs only up to a bound, beyond which their speed is worth more
than context. It is run in the most generous way that holds it, and so never grows where memory
shrinks. Weights go to host memory only where no way holds the least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from caovand.core.config import Config, PolicySection
from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.engines.vllm.memory.activations import DRAFTING_SAMPLER_BYTES
from caovand.engines.vllm.memory.estimate import (
    MIB,
    Load,
    free_share,
    granular,
    lacking_gib,
    layout_for,
    longest_context,
    room_for_context,
    utilization,
    visible_mib,
)
from caovand.engines.vllm.planning.spelling import whole_number

SMALLEST_CONTEXT = 512
GRAPHLESS_CONTEXT = 32_768
"""Up to this, context is worth more than CUDA graphs: with less, long chats and tools break off."""
GENEROUS_BATCH, LEAN_BATCH = 8192, 2048
OFFLOADED_CONTEXT_SHARE = 1 / 64
"""Of a card, for more than the smallest context: it displaces weights, which costs speed."""
OFFLOAD_MARGIN_GIB = 0.25
SAMPLER_SHARE = 0.02
STEPS = ("generous", "modest", "lean", "offloaded")
MOST_SEQUENCES, TURING_SEQUENCES = 256, 2


@dataclass(frozen=True)
class Wishes:
    """What the operator asked for, None where the policy decides; `graphs` keeps CUDA graphs."""

    context: int | None = None
    sequences: int | None = None
    batch_tokens: int | None = None
    utilization: float | None = None
    eager: bool = False
    graphs: bool = False
    offload_gib: float = 0.0


@dataclass(frozen=True)
class Sizing:
    """The load that was chosen, how ("generous", "modest", ...), and whether it fits.

    `longest` is the context that the leanest way would hold; `bounded` says that less was chosen
    than this way holds.
    """

    load: Load
    step: str
    fits: bool
    longest: int = 0
    bounded: bool = False

    @property
    def sound(self) -> bool:
        """Whether it fits without weights in host memory."""
        return self.fits and self.step != "offloaded"

    @property
    def worth(self) -> tuple[bool, int, bool, int]:
        """The better of two splits has the higher one; of equals the larger split is."""
        return self.sound, self.load.context, self.load.vision, -STEPS.index(self.step)

    def unbounded(self, model: ModelCard) -> bool:
        """Whether no other split could be worth more."""
        whole = self.load.context >= model.max_model_len and self.load.vision == model.vision
        return self.sound and whole and self.step == STEPS[0]

    @property
    def rank(self) -> tuple[bool, bool, int, float]:
        """The better of two sizings has the higher one."""
        load = self.load
        return self.fits, self.step != "offloaded", load.context, -load.offload_gib


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
        graphs=_keeps_graphs(config.policy, given),
        offload_gib=float(offload) if isinstance(offload, (int, float)) else 0.0,
    )


def _keeps_graphs(policy: PolicySection, given: Mapping[str, Any]) -> bool:
    """Whether the policy may not run eagerly to save memory."""
    if given.get("enforce_eager") is False or "compilation_config" in given:
        return True
    pinned = policy.strict or "cuda_graphs" in policy.pinned
    return pinned and policy.cuda_graphs not in (None, "none")


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
    base: Load,
    model: ModelCard,
    gpus: Sequence[Gpu],
    wishes: Wishes,
    ram_mib: int,
    most: int | None = None,
) -> Sizing:
    """The most generous way of running that holds the context; offloaded where none does.

    `most` bounds a context that nobody asked for.
    """
    steps = _steps(base, model, gpus, wishes)
    longest: dict[str, int] = {}
    if not wishes.context:
        longest = {name: _longest(load, model, gpus, wishes) for name, load in steps.items()}
    least = min(SMALLEST_CONTEXT, model.max_model_len)
    context = wishes.context or min(_worthwhile(longest), most or model.max_model_len)
    if wishes.context or context >= least:
        for name, load in steps.items():
            sized = _at(load, context, gpus, wishes)
            # What was asked for may fill the cache to the brim; what we choose leaves a little.
            if holds(sized, model, gpus) if wishes.context else longest[name] >= context:
                return Sizing(sized, name, True, longest.get("lean", 0), context == most)
    offloaded = None if base.offload_gib else _offloaded(base, model, gpus, wishes, ram_mib)
    if offloaded:
        return Sizing(offloaded, "offloaded", True)
    return Sizing(_at(steps["lean"], max(context, least), gpus, wishes), "lean", False)


def holds(load: Load, model: ModelCard, gpus: Sequence[Gpu]) -> bool:
    """Whether the memory is free and one request of the context fits."""
    return load.utilization <= free_share(gpus) and lacking_gib(model, load, gpus) == 0


def longest_lean(base: Load, model: ModelCard, gpus: Sequence[Gpu]) -> int:
    """The longest context that the cards hold at all, whatever was asked for; 0 for none."""
    free = Wishes()
    return _longest(_steps(base, model, gpus, free)["lean"], model, gpus, free)


def _worthwhile(longest: Mapping[str, int]) -> int:
    """The context to have: all that fits with graphs, and without them up to their worth."""
    return max(longest["modest"], min(longest["lean"], GRAPHLESS_CONTEXT))


def _steps(base: Load, model: ModelCard, gpus: Sequence[Gpu], wishes: Wishes) -> dict[str, Load]:
    """The ways of running, most generous first."""
    batch = wishes.batch_tokens or _batch(GENEROUS_BATCH, base, model)
    sequences = wishes.sequences or min(sequences_for(model, gpus, base.turing), batch)
    small = wishes.batch_tokens or _batch(LEAN_BATCH, base, model)
    eager = wishes.eager or base.eager
    generous = replace(base, sequences=sequences, batch_tokens=batch, eager=eager)
    modest = replace(generous, batch_tokens=small)
    lean = replace(modest, sequences=wishes.sequences or 1, eager=eager or not wishes.graphs)
    return {"generous": generous, "modest": modest, "lean": lean}


def _batch(tokens: int, base: Load, model: ModelCard) -> int:
    """A step size that holds a whole block: with states at block borders vLLM asks for that."""
    if not base.aligned_states or not model.hybrid:
        return tokens
    return max(tokens, layout_for(model, base).block_tokens)


def _longest(load: Load, model: ModelCard, gpus: Sequence[Gpu], wishes: Wishes) -> int:
    """The longest context for a load; 0 for none."""
    if wishes.utilization is None:
        return longest_context(model, load, gpus)
    load = replace(load, utilization=wishes.utilization)
    room = int(room_for_context(model, load, gpus))
    limit = model.max_model_len
    return granular(layout_for(model, load).longest(room, limit), limit)


def _at(load: Load, context: int, gpus: Sequence[Gpu], wishes: Wishes) -> Load:
    """The load with this context, and the share decided."""
    load = replace(load, context=context)
    share = wishes.utilization
    return replace(load, utilization=utilization(load, gpus) if share is None else share)


def _offloaded(
    base: Load, model: ModelCard, gpus: Sequence[Gpu], wishes: Wishes, ram_mib: int
) -> Load | None:
    """A small load with what does not fit in host memory.

    None where that is short, and where the cards could hold the weights: then it is the
    operator's context or share that does not fit, and a slow engine is not what was meant.
    """
    least = min(SMALLEST_CONTEXT, model.max_model_len)
    if longest_lean(base, model, gpus) >= least:
        return None
    load = replace(
        base,
        sequences=wishes.sequences or 1,
        batch_tokens=wishes.batch_tokens or _batch(SMALLEST_CONTEXT, base, model),
        eager=wishes.eager or base.eager or not wishes.graphs,
    )
    blocks = layout_for(model, load)
    smallest = min(visible_mib(gpu.total_mib) for gpu in gpus) * MIB
    room = blocks.needed(least) + int(smallest * OFFLOADED_CONTEXT_SHARE)
    context = wishes.context or _rounded(blocks.longest(room, model.max_model_len), least)
    emptied = tuple(replace(gpu, free_mib=gpu.total_mib) for gpu in gpus)
    nearly = not wishes.context and longest_lean(base, model, emptied) >= least
    load = _at(load, least if nearly else context, gpus, wishes)
    lacking = ceil((lacking_gib(model, load, gpus) + OFFLOAD_MARGIN_GIB) * 100) / 100
    if lacking * 1024 * load.tensor_parallel > ram_mib * 0.8:
        return None
    load = replace(load, offload_gib=lacking)
    return load if holds(load, model, gpus) else None


def _rounded(context: int, least: int) -> int:
    return max(context // SMALLEST_CONTEXT * SMALLEST_CONTEXT, least)
