"""The memory forecast of a plan, in the same form for every engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from caovand.core.problem import Problem

MemoryPart = Literal[
    "weights", "kv", "states", "context", "activations", "graphs", "steps", "compute", "logits",
    "prompts", "others", "free",
]  # fmt: skip
"""Uses of memory. `context` is the CUDA context's; `steps` are activations and graphs in forecasts
that do not separate them; `compute` are ggml's buffers; `prompts` are the prompt caches in host
memory; `others` is the memory of other programs."""


@dataclass(frozen=True)
class RankForecast:
    """A pipeline stage on each of its node's cards, in MiB; `parts` add up to a card's total.

    `node` is empty if this machine serves alone; `cards` are indices on that node. `layers` are the
    first and last layer, counted from 0. The `fullest` rank limits the cache of all.
    """

    stage: int
    node: str
    cards: tuple[int, ...]
    layers: tuple[int, int]
    total_mib: int
    parts: tuple[tuple[MemoryPart, float], ...]
    fullest: bool


@dataclass(frozen=True)
class MemoryEstimate:
    """The forecast for the fullest card, in MiB; `parts` add up to the card's total, and
    `host_parts` are what an engine with layers in host memory has there.

    `fits` is None without a forecast, and `reason` says why. `conflicts` are settings that cannot
    work, however much memory there is. `kv_tokens` is the cache size that vLLM will report,
    `max_model_len` the longest context for which one request fits, `needed_mib` the memory of one
    request with the wanted context. `lack` names a shortage of something other than cache. `ranks`
    are a pipeline's differing ranks; empty if all are alike.
    """

    fits: bool | None
    gpu_memory_utilization: float | None
    weights_mib: float
    kv_mib: float
    needed_mib: float
    kv_tokens: int
    max_model_len: int
    concurrency: float
    reserve_mib: float
    parts: tuple[tuple[MemoryPart, float], ...]
    advice: tuple[str, ...] = ()
    lack: str = ""
    reason: str = ""
    conflicts: tuple[Problem, ...] = ()
    ranks: tuple[RankForecast, ...] = ()
    host_parts: tuple[tuple[MemoryPart, float], ...] = ()

    @property
    def shortage(self) -> str:
        """A sentence if weights and steps alone exceed the memory; otherwise empty."""
        if self.kv_mib > 0:
            return ""
        return f"no memory is left for a cache: {-self.kv_mib / 1024:.2f} GiB short"


def unknown(reason: str) -> MemoryEstimate:
    """An unavailable forecast with its reason."""
    return MemoryEstimate(None, None, 0, 0, 0, 0, 0, 0, 0, (), reason=reason)
