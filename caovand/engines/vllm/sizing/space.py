"""What is open to the search for a way of running, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caovand.core.config import Config, PolicySection
from caovand.core.facts.inventory import ModelCard
from caovand.engines.vllm.flags.spelling import whole_number
from caovand.engines.vllm.machine.ranks import ALONE, Nodes
from caovand.engines.vllm.memory.candidate import Load
from caovand.engines.vllm.sizing.pace import WORKLOADS, Workload


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


@dataclass(frozen=True)
class Wishes:
    """What the operator asked for, None where the policy decides; `graphs` keeps CUDA graphs,
    `typed_graphs` keeps them where anything fits with them, `nodes` are those to serve."""

    context: int | None = None
    sequences: int | None = None
    batch_tokens: int | None = None
    utilization: float | None = None
    eager: bool = False
    graphs: bool = False
    typed_graphs: bool = False
    offload_gib: float = 0.0
    workload: Workload = WORKLOADS["chat"]
    nodes: Nodes = ALONE


def wishes_of(config: Config, given: Mapping[str, Any]) -> Wishes:
    """Typed keys, and verbatim flags, which win over them."""
    policy = config.policy
    share = given.get("gpu_memory_utilization", policy.gpu_memory_utilization)
    offload = given.get("cpu_offload_gb")

    def count(name: str, typed: int | None) -> int | None:
        if name not in given:
            return typed
        number = whole_number(given[name])
        return number if number and number > 0 else None  # -1 and "auto" leave it to vLLM

    return Wishes(
        context=count("max_model_len", config.model.max_model_len),
        sequences=count("max_num_seqs", policy.max_num_seqs),
        batch_tokens=count("max_num_batched_tokens", policy.max_num_batched_tokens),
        utilization=float(share) if isinstance(share, (int, float)) else None,
        eager=bool(given.get("enforce_eager")) or policy.cuda_graphs == "none",
        graphs=_keeps_graphs(policy, given),
        typed_graphs=policy.cuda_graphs not in (None, "none"),
        offload_gib=float(offload) if isinstance(offload, (int, float)) else 0.0,
        workload=WORKLOADS[policy.workload],
    )


def _keeps_graphs(policy: PolicySection, given: Mapping[str, Any]) -> bool:
    """Whether the policy may not run eagerly to save memory."""
    if given.get("enforce_eager") is False or "compilation_config" in given:
        return True
    pinned = policy.strict or "cuda_graphs" in policy.pinned
    return pinned and policy.cuda_graphs not in (None, "none")
