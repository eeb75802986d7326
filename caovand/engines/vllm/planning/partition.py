"""Deals a model's layers to the cards of its pipeline stages, where those differ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.core.plan import Setting
from caovand.engines.common.speeds import slowest
from caovand.engines.vllm.memory.estimate import (
    Load,
    Share,
    estimate,
    layout_for,
    left_bytes,
    on_rank,
)
from caovand.engines.vllm.memory.kv_cache import pages
from caovand.engines.vllm.memory.stages import PARTITION, cards_of, own_partition, stage_model
from caovand.engines.vllm.planning.dealing import deal, spans
from caovand.engines.vllm.planning.draft import Draft, policy
from caovand.engines.vllm.planning.offload import experts_read
from caovand.engines.vllm.planning.pace import Workload
from caovand.engines.vllm.planning.pipeline import alike, anchors


class Stages:
    """The stages that a load has on these cards, with what each would hold of other layers."""

    def __init__(self, model: ModelCard, load: Load, gpus: Sequence[Gpu]) -> None:
        self._model, self._load = model, load
        count = len(load.stages)
        self.gpus = [cards_of(gpus, at, count, load.tensor_parallel) for at in range(count)]
        self._layout = layout_for(model, load)
        self._width = pages(model, load.mtp, 0, len(model.layer_types))
        self.share = lru_cache(maxsize=None)(self._share)
        self.room = lru_cache(maxsize=None)(self._room)
        self.seconds = lru_cache(maxsize=None)(self._seconds)

    @property
    def differ(self) -> bool:
        """Whether a card of one stage is another kind than one of another."""
        first = self.gpus[0][0]
        return not all(alike(first, gpu) for gpus in self.gpus for gpu in gpus)

    def _share(self, stage: int, start: int, end: int) -> Share:
        load, layers = self._load, len(self._model.layer_types)
        held = stage_model(self._model, start, end, drafting=load.mtp > 0)
        own = load.but(stages=(), first=start == 0, last=end == layers)
        width = max(pages(self._model, load.mtp, start, end), 1)
        return Share(held, own, self.gpus[stage], self._width / width)

    def _room(self, stage: int, start: int, end: int) -> float:
        """Blocks of the cache that a stage with these layers leaves; what it lacks is negative."""
        share = self.share(stage, start, end)
        left = left_bytes(share)
        return left * (share.scale if left > 0 else self._width) / self._layout.block_bytes

    def _seconds(self, stage: int, start: int, end: int) -> float:
        """How long a stage with these layers reads weights for a token."""
        model, load, gpus, _ = self.share(stage, start, end)
        parts = {"layers": 1.0, "experts": experts_read(model, 1), "mtp": load.mtp}
        if load.last:
            parts["head" if self._model.size("head") else "embedding"] = 1.0
        read = sum(parts.get(one.part, 0.0) * on_rank(one, model, load) for one in model.weights)
        return read / (slowest(gpus).gb_s * 1e9)

    def enough(self, usual: Workload) -> float:
        """Blocks beyond which more are worth nothing: the longest request, or all usual users."""
        limit = self._model.max_model_len
        request = self._layout.blocks_of_request(min(usual.length, limit))
        return max(self._layout.blocks_of_request(limit), usual.users * request)


def partition(
    model: ModelCard, load: Load, gpus: Sequence[Gpu], usual: Workload
) -> tuple[int, ...]:
    """The layers of each stage of this load; vLLM's own rule where the cards are alike."""
    own = own_partition(len(model.layer_types), len(load.stages))
    if not gpus:
        return own
    stages = Stages(model, load, gpus)
    if not stages.differ:
        return own
    return deal(own, anchors(model), stages.room, stages.seconds, stages.enough(usual))


def layer_partition(draft: Draft) -> Setting | None:
    """The variable that deals the layers, where vLLM's own rule is not the best."""
    load = draft.sizing.load if draft.sizing and not draft.unweighed else None
    if load is None or not load.stages or PARTITION in dict(draft.config.engine.env):
        return None
    own = own_partition(len(draft.model.layer_types), len(load.stages))
    if load.stages == own:
        return None
    return policy(_listed(load.stages), _reason(draft, load, own))


def _reason(draft: Draft, load: Load, own: tuple[int, ...]) -> str:
    """What the dealing brings: more of the cache, or a faster slowest stage."""
    by_rule = load.but(stages=own)
    stages = Stages(draft.model, load, draft.cards)
    cards = ", ".join(
        f"{count} on {gpus[0].name} of {gpus[0].total_mib / 1024:.0f} GiB"
        for count, gpus in zip(load.stages, stages.gpus, strict=True)
    )
    tokens = [estimate(draft.model, one, draft.cards).kv_tokens for one in (load, by_rule)]
    dealt = f"layers dealt by the cards, {cards}"
    if tokens[0] > tokens[1]:
        held = f"{tokens[1]}" if tokens[1] > 0 else "none"
        rule = f"vLLM's own rule ({_listed(own)})"
        return f"{dealt}: the cache holds {tokens[0]} tokens, by {rule} {held}"
    slow = [max(stages.seconds(*one) for one in spans(way)) * 1e3 for way in (load.stages, own)]
    return (
        f"{dealt}: the slowest stage reads its weights in {slow[0]:.3g} ms, by vLLM's own rule"
        f" ({_listed(own)}) in {slow[1]:.3g} ms (modelled)"
    )


def _listed(stages: Sequence[int]) -> str:
    return ",".join(map(str, stages))
