"""Search for the best candidate that fits on the cards.

Every candidate that the operator leaves open is scored by its modelled time per token of the
workload (`pace`), at the longest context that it holds, and the best that fits wins. The
utilization leaves a reserve that grows with the context, and the context depends on the room that
the utilization leaves. A candidate's longest context is computed only while the candidate may win:
its score at the longest context that it might have bounds its real score.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.core.model_task import POOLING
from caovand.core.units import MIB
from caovand.engines.vllm.machine.attention import undivided_tokens
from caovand.engines.vllm.memory.candidate import Candidate, are_large, free_share, utilization
from caovand.engines.vllm.memory.estimate import (
    kv_bytes,
    lacking_gib,
    lacks_states,
    longest_context,
)
from caovand.engines.vllm.memory.kv_cache import layout_for
from caovand.engines.vllm.memory.steps import (
    DRAFTING_SAMPLER_BYTES,
    MAX_CAPTURE_KEY,
    WITH_LARGE_GRAPHS,
    usual_largest_graph,
)
from caovand.engines.vllm.sizing.pace import CandidatePace
from caovand.engines.vllm.sizing.space import Choice, RunnerUp, Space, Workload

MIN_CONTEXT = 512
"""The smallest context worth starting with."""
GENEROUS_BATCH, LEAN_BATCH = 8192, 512
BATCHES = (GENEROUS_BATCH, 4096, 2048, 1024, LEAN_BATCH)
SAMPLER_SHARE = 0.05
MAX_SEQUENCES, MAX_SEQUENCES_OF_LARGE = 256, 1024
"""vLLM's own default limits of sequences: on most cards, and on those with 70 GiB or more except
the A100 (`get_batch_defaults` of 0.32). The larger one is used for batches: people would not notice
it."""
TURING_SEQUENCES, TURING_TOKENS = 8, 32
"""Minimum of sequences that Turing decodes at once, and tokens of its largest decode step: reading
4-bit weights takes as long as computing some 25 tokens with them on a 2080 Ti (616 GB/s, 54
TFLOP/s), and a step of more tokens makes all users wait. Batches have no such bound."""
PASSAGE = 512
"""Tokens of a text to embed or rank."""
COUNTS_APART = 1.5
"""How far apart the numbers of sequences are that the search tries for a batch: the smallest that
uses the whole cache may be this many times what fits."""
FEW_SEQUENCES = 16
"""Up to this number the search tries steps of 1.5: one sequence more may be a third of the
users."""
USUAL_SEQUENCES = 2
"""Sequences allowed even if the cache holds fewer full contexts: few requests are that long."""


def sequences_for(
    model: ModelCard, gpus: Sequence[Gpu], workload: Workload, base: Candidate
) -> int:
    """The most sequences that these cards decode at once, if nobody fixed the number."""
    if model.task in POOLING:
        return MAX_SEQUENCES  # pooling models sample nothing
    if workload.batch:
        return MAX_SEQUENCES_OF_LARGE if are_large(gpus) else MAX_SEQUENCES
    if base.kernels.turing:
        return max(TURING_SEQUENCES, TURING_TOKENS // (1 + base.mtp))
    card = min(gpu.total_mib for gpu in gpus) * MIB
    each = max(model.vocab_size, 1) * DRAFTING_SAMPLER_BYTES
    count = MAX_SEQUENCES
    while count > 1 and count * each > SAMPLER_SHARE * card:
        count //= 2
    return count


class _Scored(NamedTuple):
    """A candidate of one of the bases with its score, or with a bound of it until its context is
    known.

    Of equal scores the first listed wins.
    """

    score: float
    order: int
    base: int
    candidate: Candidate
    sized: bool

    @property
    def kind(self) -> tuple[int, bool]:
        """The differences that people care about; sequences and step size are details."""
        return self.base, self.candidate.eager


class CandidateSearch:
    """Finds the fastest candidate; the longest context of each is found only while it may win."""

    def __init__(self, space: Space, model: ModelCard, gpus: Sequence[Gpu]) -> None:
        self._space, self._model, self._gpus = space, model, gpus
        self._min_context = min(MIN_CONTEXT, model.max_model_len)
        self._ceilings: dict[tuple[int, bool], int] = {}

    @cached_property
    def _paces(self) -> list[CandidatePace]:
        asked = self._space.workload, self._space.nodes
        return [CandidatePace(self._model, base, self._gpus, *asked) for base in self._space.bases]

    def lean(self, base: Candidate, *, eager: bool) -> Candidate:
        """The candidate that takes the least memory apart from weights."""
        small = self._batches(base)[-1]
        lean = base.but(sequences=self._space.sequences or 1, batch_tokens=small)
        return self._starts(lean, eager=eager)[-1]

    def _starts(self, candidate: Candidate, *, eager: bool) -> tuple[Candidate, ...]:
        """Cache sizes to try: as vLLM sizes the cache at the first start; and, if that start
        compiles and thus sees less memory than all later ones, with a size that we set."""
        if eager:
            return (candidate.but(eager=True),)
        # vLLM knows best how much that takes
        gathers = candidate.replicas > 1 and self._model.experts
        sized = self._space.in_bytes and not candidate.stages and not gathers
        return tuple(
            start
            for graphs in self._graphs(candidate)
            for start in (
                graphs.but(eager=False, cold=True),
                *([graphs.but(eager=False, in_bytes=True)] if sized else ()),
            )
        )

    def _graphs(self, candidate: Candidate) -> Iterator[Candidate]:
        """Graph sizes to try: those that vLLM captures by default, and, for models whose graphs are
        unusually large (a thousand tokens), the usual sizes."""
        yield candidate
        usual = usual_largest_graph(candidate.sequences, candidate.mtp)
        if self._space.sizes_graphs and self._model.model_type in WITH_LARGE_GRAPHS:
            sizes = {**candidate.compilation, MAX_CAPTURE_KEY: usual}
            yield candidate.but(compilation=sizes)

    def fastest(self, eager: tuple[bool, ...]) -> Choice | None:
        """The candidate with the lowest score and its runner-up; None if nothing fits."""
        limit = self._space.context or self._model.max_model_len
        queue = [
            _Scored(self._paces[base].score(candidate, limit), order, base, candidate, sized=False)
            for order, (base, candidate) in enumerate(self._candidates(eager))
        ]
        heapq.heapify(queue)
        first: _Scored | None = None
        while queue:
            entry = heapq.heappop(queue)
            if not entry.sized:
                sized = self._with_longest_context(entry.base, entry.candidate)
                if sized:
                    score = self._score(entry.base, sized)
                    again = entry._replace(score=score, candidate=sized, sized=True)
                    heapq.heappush(queue, again)
            elif first is None:
                first = entry
                if self._space.context or entry.candidate.context >= limit:
                    break
            elif entry.kind != first.kind:
                return self._choice(first, entry)
        return self._choice(first, None) if first else None

    def _score(self, base: int, candidate: Candidate) -> float:
        """The score of a candidate whose context is known."""
        usual = self._space.workload
        room, short = (
            self._room(candidate, size) for size in (usual.cached_tokens, usual.admitted_tokens)
        )
        return self._paces[base].score(candidate, room=room, short=short)

    def _candidates(self, eager: tuple[bool, ...]) -> Iterator[tuple[int, Candidate]]:
        for number, base in enumerate(self._space.bases):
            counts = self._counts(base)
            for batch in self._batches(base):
                for count in (n for n in counts if n <= batch or self._space.sequences):
                    sized = base.but(sequences=count, batch_tokens=batch)
                    for graphless in eager:
                        for candidate in self._starts(sized, eager=graphless):
                            yield number, candidate

    def _batches(self, base: Candidate) -> tuple[int, ...]:
        if self._space.batch_tokens:
            return (self._space.batch_tokens,)
        # Each sequence takes a token of every step.
        item = undivided_tokens(self._model, vision=base.vision)
        least = max(self._space.sequences or 1, item)
        steps = (self._model.max_model_len, *BATCHES) if self._model.one_step else BATCHES
        sizes = (max(whole_blocks(size, base, self._model), least) for size in steps)
        return tuple(dict.fromkeys(sizes))

    def _counts(self, base: Candidate) -> tuple[int, ...]:
        """Candidates for the number of sequences, largest first."""
        if self._space.sequences:
            return (self._space.sequences,)
        most = sequences_for(self._model, self._gpus, self._space.workload, base)
        most = min(most, self._batches(base)[0])
        halved = [most >> shift for shift in range(most.bit_length())]
        finely = max(self._space.workload.users, FEW_SEQUENCES)
        between = [count * 3 // 4 for count in halved if 2 < count <= finely]
        return tuple(sorted({*halved, *between}, reverse=True))

    def _with_longest_context(self, base: int, candidate: Candidate) -> Candidate | None:
        """The candidate with its context; None if it has no room for one, or for its sequences."""
        space = self._space
        if not self._ceiling(base, eager=candidate.eager) or not self._compiles(candidate):
            return None
        if self._model.one_step and candidate.batch_tokens < (space.context or self._min_context):
            return None
        if space.context:
            sized = with_context(candidate, space.context, self._gpus, space)
            # A requested context may fill the cache to the brim; one that we choose leaves a
            # margin.
            if not holds(sized, self._model, self._gpus):
                return None
        else:
            context = longest_context(self._model, candidate, self._gpus, space.utilization)
            if self._model.one_step:
                context = min(context, candidate.batch_tokens)
            if context < self._min_context:
                return None
            sized = with_context(candidate, context, self._gpus, space)
        if lacks_states(self._model, sized, self._gpus):
            return None
        few = USUAL_SEQUENCES
        if not space.workload.batch and not self._model.encoder_tokens:  # no recording is short
            few = max(few, space.workload.users)
        if space.sequences or sized.sequences <= few:
            return sized
        apart = space.workload.batch and not self._model.encoder_tokens
        most = self._admitted_requests(sized) * (COUNTS_APART if apart else 1)
        return sized if sized.sequences <= most else None

    def _admitted_requests(self, candidate: Candidate) -> int:
        """Number of requests that the cache holds, rounded: vLLM admits no more than fit."""
        return round(self._room(candidate, self._space.workload.admitted_tokens))

    def _compiles(self, candidate: Candidate) -> bool:
        """Whether the first start has room to compile, which happens before the cache is
        allocated."""
        if not candidate.in_bytes:
            return True  # vLLM has already subtracted that from the cache
        first = candidate.but(in_bytes=False, cold=True, utilization=free_share(self._gpus))
        return kv_bytes(self._model, first, self._gpus) > 0

    def _room(self, candidate: Candidate, tokens: int) -> float:
        tokens = PASSAGE if self._model.task in POOLING else tokens
        return requests_that_fit(candidate, self._model, self._gpus, min(candidate.context, tokens))

    def longest(self) -> int:
        """The longest context of the leanest candidates; 0 if there is none."""
        every = range(len(self._space.bases))
        return max(self._ceiling(base, eager=self._space.eager[-1]) for base in every)

    def _ceiling(self, base: int, *, eager: bool) -> int:
        """The longest context of the leanest candidate of this kind; 0 if there is none."""
        if (base, eager) not in self._ceilings:
            context = self._longest(self.lean(self._space.bases[base], eager=eager))
            self._ceilings[base, eager] = context if context >= self._min_context else 0
        return self._ceilings[base, eager]

    def _longest(self, candidate: Candidate) -> int:
        """The longest context that this candidate holds, or the requested one; 0 for none."""
        asked = self._space.context
        if not asked:
            return longest_context(self._model, candidate, self._gpus, self._space.utilization)
        sized = with_context(candidate, asked, self._gpus, self._space)
        return asked if holds(sized, self._model, self._gpus) else 0

    def _choice(self, first: _Scored, second: _Scored | None) -> Choice:
        candidate, space = first.candidate, self._space
        spared = set()
        if candidate.sequences < self._counts(candidate)[0]:
            spared.add("sequences")
        if candidate.batch_tokens < self._batches(candidate)[0]:
            spared.add("batch")
        whole, base = space.bases[0], space.bases[first.base]
        alike = base.but(rounds_head=whole.rounds_head, rounds_drafter=whole.rounds_drafter)
        if alike != whole or (candidate.eager and not space.eager[0]):
            spared.add("speed")
        longest, runner_up = 0, None
        if not space.context and candidate.context < self._model.max_model_len:
            longest = self.longest()
        if second:
            seconds = self._paces[second.base].seconds(second.candidate)
            slower = seconds / self._paces[first.base].seconds(candidate)
            runner_up = RunnerUp(second.candidate, slower)
        return Choice(
            candidate,
            fits=True,
            base=first.base,
            score=first.score,
            spared=frozenset(spared),
            longest=longest,
            runner_up=runner_up,
        )


def holds(candidate: Candidate, model: ModelCard, gpus: Sequence[Gpu]) -> bool:
    """Whether the memory is free and one request of this context fits."""
    return candidate.utilization <= free_share(gpus) and lacking_gib(model, candidate, gpus) == 0


def requests_that_fit(
    candidate: Candidate, model: ModelCard, gpus: Sequence[Gpu], tokens: int
) -> float:
    """Number of requests of so many tokens that the cache holds while they decode.

    Sliding-window layers hold one whole step more while a prompt is being read.
    """
    available = int(kv_bytes(model, candidate, gpus))
    return layout_for(model, candidate.but(batch_tokens=1)).concurrency(available, tokens)


def whole_blocks(tokens: int, base: Candidate, model: ModelCard) -> int:
    """A step size that holds a whole block: vLLM requires that of states kept at block borders."""
    if not base.aligned_states or not model.hybrid:
        return tokens
    return max(tokens, layout_for(model, base).block_tokens)


def with_context(
    candidate: Candidate, context: int, gpus: Sequence[Gpu], space: Space
) -> Candidate:
    """The candidate with this context, and the utilization that is fixed or that follows from
    it."""
    share = space.utilization
    if share is None:
        share = utilization(candidate, gpus, context)
    return candidate.but(context=context, utilization=share)
