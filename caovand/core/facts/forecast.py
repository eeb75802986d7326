"""The memory forecast of a plan, in the same form for every engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from caovand.core.problem import Problem

MemoryPart = Literal[
    "weights", "kv", "states", "context", "activations", "graphs", "steps", "compute", "logits",
    "prompts", "others", "free",
]  # fmt: skip
"""What memory is for. `context` is CUDA's own, `steps` are activations and graphs where a forecast
does not tell them apart, `compute` ggml's buffers, `prompts` those of earlier requests in host
memory, `others` other programs' memory."""


@dataclass(frozen=True)
class RankForecast:
    """One pipeline stage on each of its cards of one node, in MiB; `parts` add up to the card.

    `node` is empty where this machine serves alone; `cards` are indices there. `layers` are the
    first and the last, counted from 0. The `fullest` one decides the cache of all.
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
    """The forecast for the fullest card, in MiB; `parts` add up to the card.

    `fits` is None without a forecast; `reason` says why. `conflicts` are settings that cannot run,
    however much memory there is. `kv_tokens` is the size that vLLM will report, `max_model_len` the
    longest context of which one request fits, `needed_mib` the need of one request of the wanted
    context. `lack` names the shortage if it is not the cache. `ranks` are those of a pipeline,
    which differ; empty where all are alike.
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

    @property
    def no_room(self) -> str:
        """A sentence if weights and steps alone overflow, else empty."""
        if self.kv_mib > 0:
            return ""
        return f"no room is left for a cache: {-self.kv_mib / 1024:.2f} GiB short"


def unknown(reason: str) -> MemoryEstimate:
    """No forecast, and why."""
    return MemoryEstimate(None, None, 0, 0, 0, 0, 0, 0, 0, (), reason=reason)
