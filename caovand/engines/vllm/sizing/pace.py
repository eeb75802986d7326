"""How long a candidate takes per token of the workload: the measure by which the planner chooses.

A decode step reads the weights and the cache of its requests; drafting adds passes and yields
tokens; without CUDA graphs the host launches every kernel; weights in host memory cross the PCIe
bus in every step. The time is weighted by what a candidate cannot do at all: requests longer than
its context, more users than its sequences, images, and the exactness of a 16-bit cache. The
constants are few and coarse: they rank plans, and promise nobody a speed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import ceil, inf, log, sqrt

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.core.model_task import POOLING
from caovand.engines.common.speeds import (
    ALL_REDUCES,
    UNLINKED_S,
    Speed,
    card_link,
    slowest,
    transfer_s,
)
from caovand.engines.common.tensors import experts_read, has_few_active, part_of_experts
from caovand.engines.vllm.machine.link_time import (
    ONE_NODE,
    TENSORS_PER_STAGE,
    NodeGroup,
    all_reduce_s,
)
from caovand.engines.vllm.memory.candidate import Candidate, are_large
from caovand.engines.vllm.memory.kv_cache import STATE, state_bytes
from caovand.engines.vllm.memory.shards import (
    BYTES_EACH,
    FOUR_BITS,
    cards_of,
    on_rank,
)
from caovand.engines.vllm.memory.steps import MAX_CAPTURE_KEY, graph_mode
from caovand.engines.vllm.sizing.attention import Attention
from caovand.engines.vllm.sizing.offloading import step_seconds
from caovand.engines.vllm.sizing.space import Workload


def unevenness(model: ModelCard, ranks: int, tokens: float) -> float:
    """Load of the busiest rank relative to the mean in a step, if each rank holds whole experts.

    The experts of a few tokens are rarely spread evenly.
    """
    read = experts_read(model, tokens)
    mean = model.experts * read / ranks
    if ranks == 1 or not mean:
        return 1.0
    return min(1 + sqrt(2 * log(ranks) * (1 - read) / mean), ranks)


ACCEPTED = 0.8
"""The fraction of drafts accepted at each position if all before it were: in natural text with the
27B's head 68 % of three and 58 % of four tokens were accepted, 3.0 and 3.3 tokens a step."""
LAUNCH_S = {"eager": 0.4e-3, "PIECEWISE": 0.13e-3}
"""Seconds that a layer of a decode step waits for the host. With piecewise graphs the 27B's 64
layers took 54 ms instead of 37 with full graphs, on a slow host: half of that is assumed here, and
three times as much if every kernel is launched."""
STEP_TOKENS = 256
"""Overhead of each prompt step (launches, partial tiles), as the number of tokens that take as
long."""
WORTH_OF_VISION, WORTH_OF_EXACT_CACHE, WORTH_OF_EXACT_WEIGHTS = 0.9, 0.95, 0.9
"""The relative worth of a candidate without images, or whose cache or weights are quantised to 8
bits although nobody asked: published runs show no loss from an fp8 cache, but they do not cover
every model."""
WORTH_OF_VIDEOS, WORTH_OF_WHOLE_IMAGES = 0.97, 0.98
"""The relative worth of a candidate that takes images, but no videos, or scales large images
down."""
WORTH_OF_SMALL_GRAPHS = 0.97
"""The relative worth if the last, short steps of prompts run without the graphs that vLLM would
capture."""
WORTH_OF_FOUR_BIT_CACHE = 0.85
"""The relative worth of a 4-bit cache, whose keys and values are off by some 10 %."""
WORTH_OF_INT8_HEAD = 0.97
"""The relative worth of an lm_head in 8 bits although nobody asked: its error is a twelfth of a
layer's in 4 bits (csrc/NOTEBOOK.md)."""
WORTH_OF_CUT, WORTH_OF_CUT_IN_BATCH = 0.93, 0.98
"""The worth of a context below the model's own limit: clients that rely on the model card are
refused. The last tenth of the limit is not worth more sequences or larger steps, except in a batch,
where the lengths of requests are known."""
USUAL_STEP, USUAL_STEP_OF_LARGE = 2048, 8192
WORTH_OF_SHORT_STEPS = 0.98
"""vLLM's own default steps for a server, on most cards and on large ones; and the relative worth of
shorter ones in a batch: prompts come unevenly, and some are longer than usual."""
LENGTHS_SPREAD, USERS_SPREAD = 2, 1 / 16
"""Number of usual requests that half of all conversations outgrow, and the fraction of the
workload's users who are active half the time."""


CONTESTED_GAIN = 1.06
"""The most that drafts gain where published results contradict each other (23 % slower to 27 %
faster): less than images or the model's own limit are worth, more than sequences beyond the
workload's."""


class CandidatePace:
    """The pace of candidates that differ in context, sequences, step size and graphs.

    `base` decides the rest: split, drafting depth, cache type, vision tower. The cards are on
    `nodes`.
    """

    def __init__(
        self,
        model: ModelCard,
        base: Candidate,
        gpus: Sequence[Gpu],
        workload: Workload,
        nodes: NodeGroup = ONE_NODE,
    ) -> None:
        self._model, self._gpus, self._workload = model, gpus, workload
        self._mixes = workload.batch and model.task not in POOLING  # prompts and answers in a step
        self._bytes: dict[str, float] = defaultdict(float)
        for weights in model.weights:
            self._bytes[weights.part] += on_rank(weights, model, base)
        speed = _speed(base, gpus)
        self._gb_s, self._flop_s = speed.gb_s * 1e9, speed.tflop_s * 1e12
        count = base.draft_vocabulary
        self._drafted = min(1.0, count / model.vocab_size) if count else 1.0
        self._head = (
            self._bytes["head"] or self._bytes["embedding"]
        )  # tied embeddings are read once
        self._attention = Attention.of(model, base, workload.cached_tokens)
        self._state = _state_moved(model, base)
        self._replicas = base.replicas
        self._holders = base.tensor_parallel * base.replicas if base.whole_experts else 1
        self._layers = len(model.layer_types) + drafting_passes(model, base)
        stored = model.quantization or base.quantization or None
        self._bytes_each = BYTES_EACH.get(stored, FOUR_BITS)
        self._exchange_s, self._exchanged_s = _exchange(model, base, gpus, nodes)
        exact = (
            base.kv_dtype.startswith(("auto", "half", "float16", "bfloat16")) or base.kernels.turing
        )
        rounded = base.quantization and not model.quantization
        self._worth = WORTH_OF_EXACT_WEIGHTS if rounded else 1.0
        self._worth *= (WORTH_OF_VISION if model.vision and not base.vision else 1.0) * (
            1.0 if exact else WORTH_OF_EXACT_CACHE
        )
        if model.tower and base.vision:
            self._worth *= 1.0 if base.videos else WORTH_OF_VIDEOS
            self._worth *= WORTH_OF_WHOLE_IMAGES if base.pixels else 1.0
        if base.rounds_head:
            self._worth *= WORTH_OF_INT8_HEAD
        if base.kv_dtype.startswith("int4"):
            self._worth *= WORTH_OF_FOUR_BIT_CACHE

    def score(
        self,
        candidate: Candidate,
        context: int | None = None,
        room: float = inf,
        short: float = inf,
    ) -> float:
        """Seconds per token that users get from this candidate, weighted by what it cannot do.

        `context` replaces the candidate's; the cache has room for `room` usual requests, and for
        `short` of those that determine the number of sequences.
        """
        workload, context = self._workload, context or candidate.context
        reached = context / (context + workload.length * LENGTHS_SPREAD)
        reached *= min(context / workload.length, 1)  # even a usual request is too long
        if context < self._model.max_model_len:
            reached *= WORTH_OF_CUT_IN_BATCH if self._mixes else WORTH_OF_CUT
        waiting = 0 if workload.batch else workload.users * USERS_SPREAD
        served = candidate.sequences / (candidate.sequences + waiting)
        seconds = self.seconds(candidate, room)
        if workload.batch:  # as many requests are half as long
            seconds = (seconds + self.seconds(candidate, short)) / 2
        cut = not candidate.eager and MAX_CAPTURE_KEY in candidate.compilation
        worth = self._worth * (WORTH_OF_SMALL_GRAPHS if cut else 1.0)
        usual = USUAL_STEP_OF_LARGE if are_large(self._gpus) else USUAL_STEP
        if workload.batch and candidate.batch_tokens < usual:
            worth *= WORTH_OF_SHORT_STEPS
        return seconds / (reached * served * worth)

    def seconds(self, candidate: Candidate, room: float = inf) -> float:
        """Seconds per token of the workload, with as many users served together as possible.

        Requests beyond the `room` of the cache wait, however many sequences are allowed.
        """
        workload = self._workload
        users = max(workload.users / self._replicas, 1)
        together = min(users, candidate.sequences, max(room, 1.0))
        if self._mixes:
            # Steps have room for the tokens of all answers, and for the prompts of the next.
            steps = workload.answer / tokens_of_step(candidate.mtp)
            each = 1 + candidate.mtp + workload.prompt / steps
            together = min(together, candidate.batch_tokens / each)
        decode = workload.answer * self._token_s(candidate, together)
        turn = together * self._prompt_s(candidate) + decode
        return turn / (together * workload.answer * min(self._replicas, workload.users))

    def answering(self, candidate: Candidate, users: int = 1) -> float:
        """Tokens a second of all answers to `users` users while no prompt is being read."""
        each = max(users / self._replicas, 1)
        return users / self._token_s(candidate, each)

    def reading(self, candidate: Candidate) -> float:
        """Tokens a second of the workload's prompts."""
        return self._workload.prompt / self._prompt_s(candidate)

    def _token_s(self, candidate: Candidate, users: float) -> float:
        """Seconds for the next token of each of `users` users."""
        time = self._step_s(candidate, users) / tokens_of_step(candidate.mtp)
        if not (candidate.mtp and has_few_active(self._model)):
            return time
        return max(time, self._step_s(candidate.but(mtp=0), users) / CONTESTED_GAIN)

    def _step_s(self, candidate: Candidate, users: float) -> float:
        """One decode step of `users` users."""
        tokens = users * (1 + candidate.mtp)
        everybodys = tokens * self._replicas
        experts = self._bytes["experts"] * experts_read(self._model, everybodys)
        experts *= unevenness(self._model, self._holders, everybodys)
        read = self._bytes["layers"] + experts + self._head
        drafter = self._bytes["mtp"] * experts_read(self._model, users)  # nearly all its experts
        read += drafting_passes(self._model, candidate) * (drafter + self._head * self._drafted)
        read += users * (self._attention.read + self._state) - candidate.offload_gib * 2**30
        work = max(max(read, 0) / self._gb_s, self._flops(tokens) / self._flop_s)
        return work + self._waiting_s(candidate, tokens) + tokens * self._exchanged_s

    def _prompt_s(self, candidate: Candidate) -> float:
        """Seconds to read the workload's prompt. In a batch these steps also decode, so that they
        read the weights and wait for the host anyway."""
        steps = ceil(self._workload.prompt / candidate.batch_tokens)
        if self._mixes and not candidate.offload_gib:
            steps = 0
        tokens = self._workload.prompt * (1 + STEP_TOKENS / candidate.batch_tokens)
        read = self._bytes["layers"]
        read += self._bytes["experts"] * experts_read(self._model, candidate.batch_tokens)
        work = max(steps * read / self._gb_s, self._flops(tokens) / self._flop_s)
        work += self._workload.prompt * self._exchanged_s
        work += self._attention.flops(self._workload.prompt) / self._flop_s
        return work + steps * self._waiting_s(candidate, candidate.batch_tokens)

    def _flops(self, tokens: float) -> float:
        active = self._bytes["experts"] * part_of_experts(self._model)
        weights = self._bytes["layers"] + active * self._replicas
        return 2 * tokens * weights / self._bytes_each

    def _waiting_s(self, candidate: Candidate, tokens: float) -> float:
        """Seconds that a step waits for the host, the bus and the other cards."""
        mode = "eager" if candidate.eager else graph_mode(candidate.compilation)
        waits = self._layers * LAUNCH_S.get(mode, 0.0) + self._exchange_s
        if candidate.offload_gib:
            waits += step_seconds(candidate.offload_gib, self._model, self._gpus, tokens)
        return waits


def _exchange(
    model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu], nodes: NodeGroup
) -> tuple[float, float]:
    """Seconds that cards exchange data in a step, and per token of it.

    Between nodes the network link carries it, whatever connects the cards within a node.
    """
    ranks, stages = candidate.tensor_parallel, max(len(candidate.stages), 1)
    here = max(len(gpus) // nodes.count, 1)
    all_reduces = ALL_REDUCES * (len(model.layer_types) + drafting_passes(model, candidate))
    size = model.hidden_size * candidate.activation
    exchanges = [(float(all_reduces), ranks)]
    if candidate.replicas > 1 and model.experts:
        # Attention belongs to one replica; for the experts all tokens are gathered, and reduced.
        exchanges = [(all_reduces / 2, ranks), (all_reduces / 2, ranks * candidate.replicas)]
    step_s = token_s = 0.0
    for count, among in exchanges:
        inside, spanned = min(among, here), ceil(among / here)
        if inside > 1:
            groups = [gpus[at : at + inside] for at in range(0, len(gpus), inside)]
            wait_s, bytes_s = card_link(groups)
            step_s += count * wait_s
            token_s += count * transfer_s(inside, bytes_s, size)
        if spanned > 1:
            step_s += count * all_reduce_s(spanned, nodes.link)
            token_s += count * transfer_s(spanned, nodes.link.bytes_s, size)
    hops = sum(at * ranks // here != (at * ranks - 1) // here for at in range(1, stages))
    step_s += (stages - 1 - hops) * UNLINKED_S + hops * nodes.link.round_trip_s / 2
    token_s += hops * TENSORS_PER_STAGE * size / nodes.link.bytes_s
    return step_s, token_s


def _speed(candidate: Candidate, gpus: Sequence[Gpu]) -> Speed:
    """The speed of the slowest card; for stages, which work one by one, the mean weighted by
    layers."""
    if not candidate.stages:
        return slowest(gpus)
    count, layers = len(candidate.stages), sum(candidate.stages)
    each = [slowest(cards_of(gpus, at, count, candidate.tensor_parallel)) for at in range(count)]
    dealt = list(zip(candidate.stages, each, strict=True))
    return Speed(
        layers / sum(count / speed.gb_s for count, speed in dealt),
        layers / sum(count / speed.tflop_s for count, speed in dealt),
    )


def drafting_passes(model: ModelCard, candidate: Candidate) -> int:
    """Passes of the drafting layers in a step: a drafter makes all its drafts in one."""
    return min(candidate.mtp, 1) if model.drafter else candidate.mtp


def tokens_of_step(mtp: int) -> float:
    """The mean number of tokens of a decode step that drafts `mtp` tokens."""
    return float((1 - ACCEPTED ** (mtp + 1)) / (1 - ACCEPTED))


def _state_moved(model: ModelCard, candidate: Candidate) -> float:
    """Bytes of recurrent states that a step moves: read once, and written after every token of the
    step."""
    count = sum(map(model.cached_layers.count, STATE))
    if not count or not (model.linear or model.mamba):
        return 0.0
    ranks = candidate.tensor_parallel
    state = state_bytes(model, candidate.mtp, ranks, candidate.activation, candidate.state_dtype)
    return float(count * state * (2 + candidate.mtp))
