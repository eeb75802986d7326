"""What the search for a way of running finds."""

from __future__ import annotations

from dataclasses import dataclass

from caovand.core.facts.inventory import ModelCard
from caovand.engines.vllm.memory.estimate import Load


@dataclass(frozen=True)
class Rival:
    """The runner-up, and its time per token relative to the best configuration's."""

    load: Load
    slower: float


@dataclass(frozen=True)
class Sizing:
    """The load that was chosen, its score, and whether it fits.

    `offloaded` says that weights had to leave the cards; `spared` what is less than these cards
    would have with memory enough ("sequences", "batch", "speed"); `longest` is the context that
    the leanest way would hold.
    """

    load: Load
    fits: bool
    score: float = float("inf")
    offloaded: bool = False
    spared: frozenset[str] = frozenset()
    longest: int = 0
    rival: Rival | None = None

    @property
    def sound(self) -> bool:
        """Whether it fits without weights in host memory."""
        return self.fits and not self.offloaded

    def unbounded(self, model: ModelCard) -> bool:
        """Whether no other split could be worth more."""
        whole = self.load.context >= model.max_model_len and self.load.vision == model.vision
        return self.sound and whole and "speed" not in self.spared
