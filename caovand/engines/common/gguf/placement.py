"""The placement of a model's layers on cards and in host memory, and the bytes on each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from caovand.core.facts.gguf import Gguf
from caovand.core.facts.inventory import Gpu, Host, ModelCard
from caovand.core.facts.occupancy import host_reserve_mib
from caovand.core.units import MIB
from caovand.engines.common.gguf.sizes import (
    GgufLoad,
    cache_bytes,
    cache_read_bytes,
    compute_bytes,
    output_bytes,
    state_bytes,
)
from caovand.engines.common.processors import read_seconds
from caovand.engines.common.speeds import BANDWIDTH_REACHED, card_speed
from caovand.engines.common.tensors import part_of_experts

CONTEXT_MIB = 350
"""Memory on each card for CUDA's context and its kernels' pools."""
HOST_RESERVE, MIN_HOST_RESERVE_MIB = 16, 1024
"""The denominator of the fraction of host memory left to everything else, and its minimum."""
MAX_SLOWDOWN = 1.15
"""The factor by which a placement with all attention on the cards may be slower than the
fastest."""
HANDOVER_S = 60e-6
"""Seconds to transfer a token to host memory and back, for a layer computed on both sides."""
DENSE_LAYER_S, EXPERTS_LAYER_S = 20e-6, 65e-6
"""Seconds of a layer's kernels besides reading, by published speeds: an 8B of 32 layers on a 3090,
gpt-oss-120b's 36 on a GB10."""


@dataclass(frozen=True)
class Placement:
    """The number of layers on each card (the output counts as one).

    The first `experts_in_ram` layers keep their routed experts in host memory.
    """

    on_cards: tuple[int, ...] = ()
    experts_in_ram: int = 0

    @property
    def layers(self) -> int:
        """llama-server's count of layers on cards, the output included."""
        return sum(self.on_cards)


@dataclass(frozen=True)
class Device:
    """Bytes on one card or in host memory (`card` None).

    `read` are the bytes that a token reads, of which `experts_read` belong to routed experts and
    `cache_read` to the cache of its request.
    `layers` are the layers that the device computes.
    """

    card: int | None
    weights: int = 0
    cache: int = 0
    states: int = 0
    compute: int = 0
    output: int = 0
    prompts: int = 0
    read: float = 0.0
    experts_read: float = 0.0
    cache_read: float = 0.0
    layers: int = 0

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.weights + self.cache + self.states + self.compute + self.output + self.prompts


def devices(model: ModelCard, load: GgufLoad, placement: Placement) -> tuple[Device, ...]:
    """The bytes on each card, in their order, and then in host memory."""
    gguf, compute = _gguf(model), compute_bytes(model, load)
    units = len(gguf.layers) + 1
    in_ram = max(units - placement.layers, 0)
    cards = range(len(placement.on_cards))
    dealt = [card for card in cards for _ in range(placement.on_cards[card])]
    owners: list[int | None] = [*[None] * in_ram, *dealt][:units]
    output_on = owners.pop()
    *on_cards, host = (
        _layers_on(place, model, load, owners, placement) for place in (*cards, None)
    )
    host = replace(
        host,
        weights=host.weights + gguf.embedding,
        # With every layer on cards, the host computes next to nothing.
        compute=compute if in_ram else 0,
        output=output_bytes(model, load),
        layers=max(in_ram if placement.layers else 0, placement.experts_in_ram),
    )
    every = [*(replace(card, compute=compute + CONTEXT_MIB * MIB) for card in on_cards), host]
    at = cards.stop if output_on is None else output_on
    head = gguf.output or gguf.embedding
    # A head that doubles as the embedding is in host memory already.
    stored = gguf.output if output_on is None else head
    every[at] = replace(
        every[at],
        weights=every[at].weights + stored + gguf.rest + gguf.vision,
        read=every[at].read + head + gguf.rest,
        compute=every[at].compute + max(gguf.vision_graph - compute, 0),
    )
    return tuple(every)


def _layers_on(
    card: int | None,
    model: ModelCard,
    load: GgufLoad,
    owners: Sequence[int | None],
    placement: Placement,
) -> Device:
    """The layers on one device, and the routed experts there, which may belong to other layers."""
    dense = experts = cache = cache_read = states = layers = 0
    for number, (layer, owner) in enumerate(zip(_gguf(model).layers, owners, strict=True)):
        loaded = load.mtp or not layer.mtp
        if loaded and card == (None if number < placement.experts_in_ram else owner):
            experts += layer.expert_size
        if card == owner:
            dense += layer.size - layer.expert_size if loaded else 0
            cache += cache_bytes(layer, load)
            cache_read += cache_read_bytes(layer, load)
            states += state_bytes(layer, load)
            layers += 1
    experts_read = experts * part_of_experts(model)
    return Device(
        card,
        weights=dense + experts,
        cache=cache,
        states=states,
        read=dense + experts_read + cache_read,
        experts_read=experts_read,
        cache_read=cache_read,
        layers=layers,
    )


def host_budget(host: Host, gpus: Sequence[Gpu]) -> int:
    """Bytes of host memory that may be used; of unified memory all but half the host's reserve."""
    if any(gpu.unified for gpu in gpus):
        return host_reserve_mib(host.ram_mib) // 2 * MIB
    reserve_mib = max(host.ram_mib // HOST_RESERVE, MIN_HOST_RESERVE_MIB)
    return max(host.available_mib - reserve_mib, 0) * MIB


def fits(placed: Sequence[Device], budgets: Sequence[int], host: int) -> bool:
    """Whether every device has room: `budgets` bytes on the cards, `host` bytes in host memory."""
    return placed[-1].total <= host and all(
        device.total <= budget for device, budget in zip(placed, budgets, strict=False)
    )


def step_seconds(placed: Sequence[Device], gpus: Sequence[Gpu], host: Host) -> float:
    """The modelled time per token: the bytes that each device reads, by its bandwidth."""
    of_host = placed[-1]
    seconds = read_seconds(host, of_host.read - of_host.experts_read, of_host.experts_read)
    seconds += of_host.layers * HANDOVER_S
    for device, gpu in zip(placed, gpus, strict=False):
        seconds += device.read / (card_speed(gpu).gb_s * BANDWIDTH_REACHED * 1e9)
        seconds += device.layers * (EXPERTS_LAYER_S if device.experts_read else DENSE_LAYER_S)
    return seconds


def place(
    model: ModelCard, load: GgufLoad, gpus: Sequence[Gpu], host: Host, budgets: Sequence[int]
) -> Placement:
    """The fastest placement that fits the cards; host memory gets the rest.

    Experts leave the cards before whole layers do: a token reads few of them, and the cards compute
    all attention. That holds even if a token is a little slower, since prompts are read far faster.
    """
    if not gpus:
        return Placement()
    timed = [
        (placement, step_seconds(devices(model, load, placement), gpus, host))
        for placement in _Placer(model, load, budgets).candidates()
    ]
    fastest = min((seconds for _, seconds in timed), default=0.0)
    quick = (placement for placement, seconds in timed if seconds <= fastest * MAX_SLOWDOWN)
    return next(quick, Placement())


@dataclass(frozen=True)
class _Placer:
    """Places one load on cards with these budgets, in bytes."""

    model: ModelCard
    load: GgufLoad
    budgets: Sequence[int]

    @property
    def units(self) -> int:
        """The layers, and the output, which counts as one."""
        return len(_gguf(self.model).layers) + 1

    def candidates(self) -> Iterator[Placement]:
        """The placements that use the cards best, in the order of preference."""
        splits_experts = bool(self.model.experts) and not self.load.whole_layers
        most_in_ram = self.units - 1 if splits_experts else 0
        if whole := self._fewest_experts_in_ram(most_in_ram):
            yield whole
        for experts_in_ram in (0, most_in_ram) if splits_experts else (0,):
            if most := self._most_layers(experts_in_ram):
                yield most

    def _most_layers(self, experts_in_ram: int) -> Placement | None:
        """As many layers as the cards hold, with their experts that are not in host memory."""
        counts = range(self.units, 0, -1)
        fitting = bisect_left(counts, True, key=lambda n: bool(self._spread(n, experts_in_ram)))
        return self._spread(counts[fitting], experts_in_ram) if fitting < len(counts) else None

    def _fewest_experts_in_ram(self, most: int) -> Placement | None:
        """Every layer on the cards, and as few experts as possible, at `most` all, in host
        memory."""
        if self._spread(self.units, most) is None:
            return None
        counts = range(most)
        fewest = bisect_left(counts, True, key=lambda n: bool(self._spread(self.units, n)))
        return self._spread(self.units, fewest)

    def _spread(self, layers: int, experts_in_ram: int) -> Placement | None:
        """Spread this many layers over the cards; None if they do not fit.

        Each card gets its share by budget, and then what the others could not hold.
        """
        counts = _split_by_budget(self.budgets, layers)
        for _ in range(layers + 1):
            placement = Placement(tuple(counts), experts_in_ram)
            placed = devices(self.model, self.load, placement)
            sizes = zip(placed, self.budgets, strict=False)
            over = [device.total - budget for device, budget in sizes]
            worst = max(range(len(over)), key=lambda card: over[card])
            if over[worst] <= 0:
                return placement
            easiest = min(range(len(over)), key=lambda card: over[card])
            if easiest == worst or over[easiest] >= 0 or counts[worst] == 0:
                return None
            counts[worst] -= 1
            counts[easiest] += 1
        return None


def _split_by_budget(budgets: Sequence[int], layers: int) -> list[int]:
    """The layers in proportion to the budgets, each rounded so that they add up."""
    whole = sum(budgets) or 1
    counts, placed = [], 0
    for card in range(len(budgets)):
        upto = round(layers * sum(budgets[: card + 1]) / whole)
        counts.append(upto - placed)
        placed = upto
    return counts


def _gguf(model: ModelCard) -> Gguf:
    assert model.gguf is not None  # the planner refuses all other models
    return model.gguf
