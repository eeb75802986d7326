"""The memory forecast of a plan, in the same form for every engine."""

from __future__ import annotations

from dataclasses import dataclass

from caovand.core.problem import Problem


@dataclass(frozen=True)
class MemoryEstimate:
    """The forecast for the fullest card, in MiB; `parts` add up to the card.

    `fits` is None without a forecast; `reason` says why. `conflicts` are settings that cannot run,
    however much memory there is. `kv_tokens` is the size that vLLM will report, `max_model_len` the
    longest context of which one request fits, `needed_mib` the need of one request of the wanted
    context. `lack` names the shortage if it is not the cache.
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
    parts: tuple[tuple[str, float], ...]
    advice: tuple[str, ...] = ()
    lack: str = ""
    reason: str = ""
    conflicts: tuple[Problem, ...] = ()

    @property
    def no_room(self) -> str:
        """A sentence if weights and steps alone overflow, else empty."""
        if self.kv_mib > 0:
            return ""
        return f"no room is left for a cache: {-self.kv_mib / 1024:.2f} GiB short"
