"""Input and result of the search for the best candidate: workload and space, and its choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from caovand.core.facts.inventory import ModelCard
from caovand.engines.common.usual_requests import USUAL_REQUESTS, UsualRequest
from caovand.engines.vllm.machine.link_time import ONE_NODE, NodeGroup
from caovand.engines.vllm.memory.candidate import Candidate


@dataclass(frozen=True)
class Workload(UsualRequest):
    """A usual request, and how many users ask at once; a batch, which nobody waits for, counts by
    throughput alone."""

    users: int
    batch: bool = False

    @property
    def length(self) -> int:
        """Tokens of a usual request."""
        return self.prompt + self.answer

    @property
    def long(self) -> bool:
        """Whether prompts are long, and one of them keeps the cards busy."""
        return self.users == 1

    @property
    def admitted_tokens(self) -> int:
        """Tokens of the requests that determine the number of sequences: usual requests of people
        who chat, half as long where lengths differ and vLLM admits no more than the cache holds."""
        return self.cached_tokens // 2 if self.batch or self.long else self.cached_tokens


USERS = {"chat": 2, "long": 1, "batch": 1024}
WORKLOADS = {
    name: Workload(usual.prompt, usual.answer, USERS[name], batch=name == "batch")
    for name, usual in USUAL_REQUESTS.items()
}


@dataclass(frozen=True)
class Space:
    """The candidates to choose from, for these nodes' cards and this workload.

    The `bases` differ in drafts, cache type, images and videos, the most generous first. Each
    stands for every context, number of sequences, step size and utilization, unless one is fixed.
    CUDA graphs are open, preferred to anything that fits without them, kept, or none. `ram_mib` is
    the host memory of one rank's node for weights that do not fit on the cards. `in_bytes`: the
    size of the cache may be set, and with `sizes_graphs` the size of the largest graph.
    `deals_layers`: stages may have as many layers as suits them.
    """

    bases: tuple[Candidate, ...] = ()
    context: int | None = None
    sequences: int | None = None
    batch_tokens: int | None = None
    utilization: float | None = None
    graphs: Literal["open", "preferred", "kept", "none"] = "open"
    workload: Workload = WORKLOADS["chat"]
    nodes: NodeGroup = ONE_NODE
    ram_mib: int = 0
    in_bytes: bool = False
    sizes_graphs: bool = False
    deals_layers: bool = True

    def is_rounded(self, base: Candidate) -> bool:
        """Whether a base's weights are quantised while the first base's are not."""
        return base.quantization != self.bases[0].quantization

    @property
    def eager(self) -> tuple[bool, ...]:
        """Whether candidates may run without graphs, the better choice first."""
        if self.graphs == "none" or self.bases[0].eager:
            return (True,)
        return (False,) if self.graphs == "kept" else (False, True)


@dataclass(frozen=True)
class RunnerUp:
    """The second-best candidate, and its time per token relative to the best one's."""

    candidate: Candidate
    slower: float


@dataclass(frozen=True)
class Choice:
    """The best candidate: its base, whether it fits, its score (lower is better).

    `offloaded`: weights had to leave the cards. `spared` names what is smaller than these cards
    would have with enough memory ("sequences", "batch", "speed"); `longest` is the context that the
    leanest candidate would hold, whatever was requested.
    """

    candidate: Candidate
    fits: bool
    base: int = 0
    score: float = float("inf")
    offloaded: bool = False
    spared: frozenset[str] = frozenset()
    longest: int = 0
    runner_up: RunnerUp | None = None

    @property
    def sound(self) -> bool:
        """Whether it fits without weights in host memory."""
        return self.fits and not self.offloaded

    def unbounded(self, model: ModelCard) -> bool:
        """Whether no other split could be worth more."""
        chosen = self.candidate
        whole = chosen.context >= model.max_model_len and chosen.vision == model.vision
        whole = whole and (not model.tower or (chosen.videos and not chosen.pixels))
        return self.sound and whole and "speed" not in self.spared
