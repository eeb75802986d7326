"""Deal a model's layers to pipeline stages on unequal cards, by the room that each stage leaves and
the time it takes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.engines.common.speeds import slowest
from caovand.engines.common.tensors import experts_read
from caovand.engines.vllm.machine.ranks import are_alike
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.estimate import left_bytes, spare_tokens
from caovand.engines.vllm.memory.kv_cache import FULL, WINDOW, layout_for, pages
from caovand.engines.vllm.memory.shards import (
    PipelineStage,
    cards_of,
    on_rank,
    own_partition,
    stage_model,
)
from caovand.engines.vllm.sizing.space import Workload

Measure = Callable[[int, int, int], float]
"""A function of stage, first layer and end layer (exclusive) that gives a figure of the stage."""
HALVINGS = 40


def deal(
    own: Sequence[int],
    anchors: Sequence[int],
    room: Measure,
    seconds: Measure,
    enough: float,
) -> tuple[int, ...]:
    """Layers of each stage: first maximise the smallest room that a stage leaves, then minimise the
    time of the slowest. More room than `enough` is worth no more.

    Every stage needs one of the `anchors`, layers in order. `own` is kept if it is as good as any
    other deal. With more layers a stage must never leave more room, nor take less time.
    """
    stages, layers = len(own), sum(own)

    def dealt(fits: Callable[[int, int, int], bool]) -> tuple[int, ...] | None:
        return fill_stages(layers, stages, anchors, fits)

    def capped(stage: int, start: int, end: int) -> float:
        return min(room(stage, start, end), enough)

    def least(dealing: Sequence[int]) -> float:
        return min(capped(*stage) for stage in spans(dealing))

    def pace(dealing: Sequence[int]) -> float:
        return -max(seconds(*stage) for stage in spans(dealing))

    kept = tuple(own) if has_anchors(own, anchors) else dealt(lambda *stage: True)
    if kept is None:
        return tuple(own)
    roomiest = _best_dealing(
        kept, enough, least, lambda limit: dealt(lambda *stage: capped(*stage) > limit)
    )
    bound = least(roomiest)
    kept = kept if least(kept) == bound else roomiest
    return _best_dealing(
        kept,
        0.0,
        pace,
        lambda limit: dealt(lambda *stage: capped(*stage) >= bound and -seconds(*stage) > limit),
    )


def spans(dealt: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Each stage with its first layer and its end (exclusive)."""
    end = 0
    for stage, count in enumerate(dealt):
        yield stage, end, end + count
        end += count


def has_anchors(dealt: Sequence[int], anchors: Sequence[int]) -> bool:
    """Whether every stage has one of these layers."""
    return all(
        bisect_left(anchors, start) < bisect_left(anchors, end) for _, start, end in spans(dealt)
    )


def fill_stages(
    layers: int, stages: int, anchors: Sequence[int], fits: Callable[[int, int, int], bool]
) -> tuple[int, ...] | None:
    """A deal in which every stage has an anchor and fits; None if there is none.

    The later a stage starts, the fewer layers it has and the more easily it fits. So of all ends
    that the previous stage can have, only the latest one before its last anchor is tried.
    """
    start_by_end: list[dict[int, int]] = []  # one for each stage
    previous_ends = [0]
    for stage in range(stages):
        starts: dict[int, int] = {}
        for end in range(1, layers + 1) if stage < stages - 1 else (layers,):
            anchor = anchors[bisect_left(anchors, end) - 1] if anchors[0] < end else -1
            at = bisect_right(previous_ends, anchor) - 1
            if at >= 0 and fits(stage, previous_ends[at], end):
                starts[end] = previous_ends[at]
        start_by_end.append(starts)
        previous_ends = list(starts)
    if layers not in start_by_end[-1]:
        return None
    dealt, end = [], layers
    for starts in reversed(start_by_end):
        dealt.append(end - starts[end])
        end = starts[end]
    return tuple(reversed(dealt))


def _best_dealing(
    start: tuple[int, ...],
    ceiling: float,
    worth: Callable[[Sequence[int]], float],
    better: Callable[[float], tuple[int, ...] | None],
) -> tuple[int, ...]:
    """The deal of the greatest worth, which is at most the ceiling; `better` finds a deal above a
    limit.

    Bisection comes close; after it each find has to beat the one before, until none does.
    """
    best, floor = start, worth(start)
    for _ in range(HALVINGS):
        middle = (floor + ceiling) / 2
        if not floor < middle < ceiling:
            break
        dealing = better(middle)
        if dealing is None:
            ceiling = middle
        else:
            best, floor = dealing, worth(dealing)
    while (dealing := better(floor)) is not None:
        best, floor = dealing, worth(dealing)
    return best


def anchors(model: ModelCard) -> list[int]:
    """Layers of which every stage needs one: attention, if there is any.

    Stages with and without attention need different layouts of the cache, but vLLM uses one for
    all.
    """
    places = [at for at, kind in enumerate(model.layer_types) if kind in (FULL, WINDOW)]
    return places or list(range(len(model.layer_types)))


class Stages:
    """The stages of a candidate on these cards, and what each would cost with other layers."""

    def __init__(self, model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu]) -> None:
        self._model, self._candidate = model, candidate
        count = len(candidate.stages)
        self.gpus = [cards_of(gpus, at, count, candidate.tensor_parallel) for at in range(count)]
        self._layout = layout_for(model, candidate)
        self._width = pages(model, candidate.mtp, 0, len(model.layer_types))
        self.stage = lru_cache(maxsize=None)(self._stage)
        self.room = lru_cache(maxsize=None)(self._room)
        self.seconds = lru_cache(maxsize=None)(self._seconds)

    @property
    def differ(self) -> bool:
        """Whether cards of different stages are of different kinds."""
        first = self.gpus[0][0]
        return not all(are_alike(first, gpu) for gpus in self.gpus for gpu in gpus)

    def _stage(self, stage: int, start: int, end: int) -> PipelineStage:
        candidate, layers = self._candidate, len(self._model.layer_types)
        part = stage_model(self._model, start, end, drafting=candidate.mtp > 0)
        own = candidate.but(stages=(), first=start == 0, last=end == layers)
        width = max(pages(self._model, candidate.mtp, start, end), 1)
        return PipelineStage(part, own, self.gpus[stage], self._width / width)

    def _room(self, stage: int, start: int, end: int) -> float:
        """Blocks that our own context may fill with these layers; negative if memory is short."""
        own = self.stage(stage, start, end)
        left = spare_tokens(own.candidate, left_bytes(own))
        return left * (own.scale if left > 0 else self._width) / self._layout.block_bytes

    def _seconds(self, stage: int, start: int, end: int) -> float:
        """Seconds that a stage with these layers reads weights per token."""
        model, candidate, gpus, _ = self.stage(stage, start, end)
        parts = {"layers": 1.0, "experts": experts_read(model, 1), "mtp": candidate.mtp}
        if candidate.last:
            parts["head" if self._model.size("head") else "embedding"] = 1.0
        read = sum(
            parts.get(tensor.part, 0.0) * on_rank(tensor, model, candidate)
            for tensor in model.weights
        )
        return read / (slowest(gpus).gb_s * 1e9)

    def enough(self, usual: Workload) -> float:
        """Blocks beyond which more are worth nothing: enough for the longest request, or for all
        usual users."""
        limit = self._model.max_model_len
        request = self._layout.blocks_of_request(min(usual.length, limit))
        return max(self._layout.blocks_of_request(limit), usual.users * request)


def partition(
    model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu], usual: Workload
) -> tuple[int, ...]:
    """The layers of each stage of this candidate: vLLM's own rule if the cards are alike and every
    stage has room enough, even the last, which also holds the head."""
    own = own_partition(len(model.layer_types), len(candidate.stages))
    if not gpus:
        return own
    stages = Stages(model, candidate, gpus)
    enough = stages.enough(usual)
    if not stages.differ and min(stages.room(*stage) for stage in spans(own)) >= enough:
        return own
    return deal(own, anchors(model), stages.room, stages.seconds, enough)
