"""The loads that SGLang's planner compares, from SGLang's own to those that save most memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import ceil
from typing import Any

from caovand.core.config.schema import Config
from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.core.units import MIB
from caovand.engines.common.options import count
from caovand.engines.common.tensors import FLOATS
from caovand.engines.common.usual_requests import WITHOUT_PREFIXES
from caovand.engines.sglang.memory.forecast import cache_room, estimate
from caovand.engines.sglang.memory.load import SglangLoad, weights_bytes
from caovand.engines.sglang.memory.states import SLOTS, divide
from caovand.engines.sglang.memory.steps import (
    MAX_GRAPH,
    largest_share,
    measured_mib,
    usual_share,
    usual_step,
)
from caovand.engines.sglang.options import QUANTIZATION, REQUESTS, SHARE, STEP
from caovand.engines.sglang.planning.pace import requests_a_second
from caovand.engines.sglang.planning.workloads import WORKLOADS, Workload

SHORT_STEPS = (2048, 1024)
MIN_LONGER, NEARLY_ALL = 1.08, 0.9
"""The factor by which a shorter step, which reads prompts a little slower, must make the context
longer, and the fraction of the model's own limit that it must reach."""
ROUNDING_MIB = 768
"""Memory in which a layer exists in both types while its weights are quantised."""
FAR_MORE = 1.25
"""The factor by which twice as many cards must finish more requests per second if NVLink does not
connect them.
"""
MIN_GAIN = 1.1
"""The factor by which a load must hold more tokens to be worth its losses."""
NATIVE = "fp8_e4m3"
"""A cache type that cards with fp8 convert as fast as they read it: many users gain."""
ADA = (8, 9)
"""The compute capability from which cards compute in fp8."""


@dataclass(frozen=True)
class SizingInput:
    """The request and machine for which loads are compared.

    `typed` are the verbatim options. `old`: a card is before SM80, so SGLang's own share applies.
    """

    config: Config
    model: ModelCard
    gpus: tuple[Gpu, ...]
    typed: Mapping[str, Any]
    old: bool

    @property
    def workload(self) -> Workload:
        return WORKLOADS[self.config.policy.workload]

    @property
    def may_round(self) -> bool:
        """Whether SGLang may quantise the weights to fp8: 16-bit weights, on cards that compute in
        fp8."""
        model = self.model
        floats = model.quantization is None and all(FLOATS.get(w.dtype) == 2 for w in model.weights)
        native = all(gpu.compute_capability >= ADA for gpu in self.gpus)
        return floats and native and not {QUANTIZATION, "load_format", "dtype"} & self.typed.keys()

    @property
    def stated_step(self) -> int | None:
        return count(self.typed.get(STEP)) or self.config.policy.max_num_batched_tokens

    @property
    def stated_share(self) -> float | None:
        share = self.typed.get(SHARE, self.config.policy.gpu_memory_utilization)
        return float(share) if isinstance(share, (int, float)) else None

    def requests_a_second(self, load: SglangLoad, tokens: int) -> float:
        """Modelled requests per second with a cache of so many tokens."""
        return requests_a_second(self.model, load, tokens, self.gpus, self.workload)


@dataclass(frozen=True)
class LoadChoice:
    """A load, the tokens that its cache holds, and the requests that it can serve at once.

    `share` finds the share of memory for a similar load.
    """

    load: SglangLoad
    tokens: int
    requests: int
    share: Callable[[SglangLoad], float]
    gain: float = 0.0
    """The factor by which it finishes more requests per second than fewer cards; 0 if fewer have no
    room.
    """
    replicas: int = 1


def eight_bits(gpus: Sequence[Gpu]) -> str:
    """The 8-bit cache that these cards read: Triton supports e4m3 only from SM89 on."""
    return NATIVE if all(gpu.compute_capability >= ADA for gpu in gpus) else "fp8_e5m2"


def choose(
    request: SizingInput,
    load: SglangLoad,
    splits: Sequence[int],
    *,
    smaller_cache: bool,
    replicated: bool,
) -> LoadChoice:
    """The load over the fewest of `splits` with room for a generous request in the model's own
    type, or over more cards if they finish far more requests; else over the fewest with room for a
    sufficient one in 8 bits, and last with weights quantised to 8 bits too. `replicated` loads are
    served by as many replicas as the cards hold."""
    workload, limit = request.workload, request.model.max_model_len

    def best(ranks: int, *, rounded: bool, small: bool) -> LoadChoice:
        split = replace(load, ranks=ranks, rounded=rounded or load.rounded)
        return _first_worth(_levels(request, split, smaller_cache=small))

    def holds(sized: LoadChoice, context: int) -> bool:
        enough = request.config.model.max_model_len or min(context, limit)
        return sized.tokens >= enough and sized.requests > 0

    def in_replicas(sized: LoadChoice) -> LoadChoice:
        replicas = len(request.gpus) // sized.load.ranks if replicated else 1
        return replace(sized, replicas=replicas)

    def generous() -> Iterator[LoadChoice]:
        for ranks in splits:
            if holds(best(ranks, rounded=False, small=False), workload.generous_context):
                yield in_replicas(best(ranks, rounded=False, small=smaller_cache))

    if roomy := tuple(generous()):
        return _most_requests(request, roomy)
    tried: list[LoadChoice] = []
    for rounded in (False, True) if request.may_round else (False,):
        for ranks in splits:
            if rounded and not _loads_unrounded(request, replace(load, ranks=ranks)):
                continue
            tried.append(best(ranks, rounded=rounded, small=smaller_cache))
            if holds(tried[-1], workload.sufficient_context):
                return in_replicas(tried[-1])
    return max(tried, key=lambda sized: (sized.tokens, sized.load.ranks))


def attend_in_groups(request: SizingInput, sized: LoadChoice) -> LoadChoice:
    """The load with separate attention on each card, if that finishes more requests.

    Each card then serves as many requests as all did together, unless the operator sets how many.
    """
    whole, model = sized.load, request.model
    stated = request.config.policy.max_num_seqs or count(request.typed.get(REQUESTS))
    if stated and stated < whole.ranks:
        return sized  # SGLang refuses a card that serves no request
    requests = ceil(stated / whole.ranks) if stated else whole.requests
    load = replace(whole, attention_groups=whole.ranks, requests=requests)
    apart = _first_worth(_levels(replace(request, old=False), load, smaller_cache=False))
    if apart.tokens < min(request.workload.generous_context, model.max_model_len):
        return sized
    rates = [request.requests_a_second(n.load, n.tokens) for n in (sized, apart)]
    return apart if rates[1] > rates[0] else sized


def drop_prefixes(request: SizingInput, sized: LoadChoice, stated: int | None) -> LoadChoice:
    """The load without the radix cache, which leaves each request a single recurrent state, if
    that finishes far more requests; with `stated` requests, or as many as have room."""
    each = request.workload.cached_tokens
    context = request.config.model.max_model_len or request.workload.generous_context
    context = min(context, request.model.max_model_len, max(sized.tokens, 1))

    def at(requests: int) -> LoadChoice:
        load = replace(sized.load, prefixes=False, slots=0, requests=requests)
        return _holding(request, replace(load, share=sized.share(load)), sized.share)

    def crowded(requests: int) -> bool:
        return at(requests).tokens < max(requests * each, context)

    def rate(sized: LoadChoice) -> float:
        return request.requests_a_second(sized.load, min(sized.tokens, sized.requests * each))

    many = stated or bisect_left(range(1, MAX_GRAPH + 1), True, key=crowded)
    single = at(max(many, 1))
    if not sized.load.prefixes:
        return single
    worth = single.tokens >= context and rate(single) >= rate(sized) * WITHOUT_PREFIXES
    return single if worth else sized


def _most_requests(request: SizingInput, roomy: Sequence[LoadChoice]) -> LoadChoice:
    """The load over the fewest cards, or one that finishes far more requests than over fewer; of
    those whose replicas use all cards, the one that finishes most."""
    chosen, fewest, most = roomy[0], 0.0, 0.0
    for sized in roomy:
        rate = request.requests_a_second(sized.load, sized.tokens) * sized.replicas
        fewest = fewest or rate
        if rate > most * (1.0 if roomy[0].replicas > 1 else FAR_MORE):
            most = rate
            chosen = replace(sized, gain=0.0 if rate == fewest else rate / fewest)
    return chosen


def _loads_unrounded(request: SizingInput, load: SglangLoad) -> bool:
    """Whether the cards hold the weights as stored: SGLang quantises them after loading."""
    stored = weights_bytes(request.model, replace(load, rounded=False))
    return stored <= (measured_mib(request.gpus) - ROUNDING_MIB) * MIB


def _levels(
    request: SizingInput, load: SglangLoad, *, smaller_cache: bool
) -> Iterator[tuple[LoadChoice, int]]:
    """The loads over some cards, from SGLang's own on, and the tokens at which each is enough: the
    workload's while that takes nothing else away, then those of a generous request."""
    config, model, gpus, workload = request.config, request.model, request.gpus, request.workload
    limit = model.max_model_len
    generous = config.model.max_model_len or min(workload.generous_context, limit)
    longest = config.model.max_model_len or limit
    plenty = max(longest, load.requests * min(workload.request_tokens, limit))
    stated_step, stated_share = request.stated_step, request.stated_share
    longest_step = max(usual_step(gpus) // load.attention_groups, SHORT_STEPS[0])
    steps = (longest_step, *(step for step in SHORT_STEPS if step < longest_step))
    if stated_step:
        steps = (stated_step // load.attention_groups,)

    def modelled_share(load: SglangLoad) -> float:
        return stated_share or largest_share(model, load, gpus)

    def default_share(load: SglangLoad) -> float:
        share = stated_share or usual_share(model, load, gpus)
        return share if request.old or stated_share else min(share, modelled_share(load))

    yield sized_load(request, replace(load, step=steps[0]), default_share), plenty
    saving = default_share if request.old else modelled_share
    small = replace(load, cache_type=eight_bits(gpus))
    if smaller_cache and workload.batch and small.cache_type == NATIVE:
        yield sized_load(request, replace(load, step=steps[0]), saving), plenty
        yield sized_load(request, replace(small, step=steps[0]), saving), generous
    for cache in (load, small) if smaller_cache else (load,):
        by_step = [sized_load(request, replace(cache, step=step), saving) for step in steps]
        for usual, shorter in zip_longest(by_step, by_step[1:]):
            gains = shorter and min(shorter.tokens, limit) >= max(
                usual.tokens * MIN_LONGER, limit * NEARLY_ALL
            )
            enough = limit if gains and not workload.batch else generous
            yield usual, min(enough, longest)


def default_load(request: SizingInput, load: SglangLoad) -> SglangLoad:
    """The load with SGLang's own step and share, for a model whose memory is not modelled."""
    load = replace(load, step=request.stated_step or usual_step(request.gpus))
    return replace(
        load, share=request.stated_share or usual_share(request.model, load, request.gpus)
    )


def sized_load(
    request: SizingInput, load: SglangLoad, share: Callable[[SglangLoad], float]
) -> LoadChoice:
    """The load with its share and its capacity.

    If SGLang's division between recurrent states and cache cuts requests or context, there are
    states for as many requests as the cache holds usual prompts.
    """
    load = replace(load, share=share(load))
    usual = _holding(request, load, share)
    limit, workload = request.model.max_model_len, request.workload
    if (
        not request.model.hybrid
        or load.slots
        or (usual.requests == load.requests and usual.tokens >= limit)
    ):
        return usual
    fitting = usual
    for requests in range(load.requests, 0, -1):
        slots = requests * SLOTS if load.prefixes else 0
        fewer = replace(load, requests=requests, slots=slots)
        fitting = _holding(request, fewer, share)
        prompts = 1 if workload.name == "long" else requests
        if fitting.tokens >= min(workload.generous_context, limit) and (
            fitting.tokens >= prompts * min(workload.request_tokens, limit)
        ):
            break
    return fitting


def _holding(
    request: SizingInput, load: SglangLoad, share: Callable[[SglangLoad], float]
) -> LoadChoice:
    model, gpus = request.model, request.gpus
    requests = divide(model, load, cache_room(model, load, gpus)).requests
    return LoadChoice(load, estimate(model, load, gpus).kv_tokens, requests, share)


def _first_worth(levels: Iterator[tuple[LoadChoice, int]]) -> LoadChoice:
    """The first load with enough tokens; else the one that holds the most, or uses the least
    memory.
    """
    best: LoadChoice | None = None
    for sized, enough in levels:
        if sized.tokens >= enough and sized.requests:
            return sized
        if best is None or not best.tokens or sized.tokens > best.tokens * MIN_GAIN:
            best = sized
    assert best is not None
    return best
