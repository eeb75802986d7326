"""SGLang's division of the memory in its share between recurrent states and the cache.

By `_handle_max_mamba_cache` of kv_cache_configurator.py in 0.5.17 and 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass

from caovand.core.facts.inventory import LinearAttention, ModelCard
from caovand.engines.common.tensors import element_bytes
from caovand.engines.sglang.memory.load import RECURRENT, SglangLoad

STATES_FOR_CACHE = 0.9
"""Bytes of states per byte of the cache (--mamba-full-memory-ratio)."""
SLOTS = 5
"""States that a running request may hold: three, and two while steps overlap; without the radix
cache it has one (`_calculate_mamba_ratio`)."""
CONV_BYTES = 2


@dataclass(frozen=True)
class Division:
    """Bytes for states and for the cache on one rank, and the requests that states allow."""

    states: float
    cache: float
    requests: int


def divide(model: ModelCard, load: SglangLoad, room: float) -> Division:
    """Divide `room`; a model without recurrent layers gets all of it as cache."""
    each = _request_bytes(model, load)
    if not each:
        return Division(0.0, room, load.requests)
    budget = room * STATES_FOR_CACHE / (1 + STATES_FOR_CACHE)
    drafted = 1 + load.depth if load.depth else 0  # a state for each token that a step verifies
    usual = int((budget - each * (1 + drafted)) // (each * (1 + drafted / SLOTS)))
    slots = load.slots or (max(usual, 0) if load.prefixes else load.requests)
    requests = min(load.requests, slots // SLOTS if load.prefixes else slots)
    states = each * (slots + 1 + (requests + 1) * drafted)
    return Division(states, room - states, requests)


def _request_bytes(model: ModelCard, load: SglangLoad) -> float:
    """Bytes of one request's states in all recurrent layers of one rank."""
    shape = model.linear or model.mamba
    layers = sum(kind in RECURRENT for kind in model.layer_types)
    return layers * _layer_bytes(shape) / load.ranks if shape else 0.0


def _layer_bytes(shape: LinearAttention) -> int:
    values = shape.value_heads * shape.value_dim
    window = (values + 2 * shape.key_heads * shape.key_dim) * (shape.conv_kernel - 1)
    kind = "float32" if shape.state_dtype == "auto" else shape.state_dtype
    return window * CONV_BYTES + values * shape.key_dim * element_bytes(kind)
