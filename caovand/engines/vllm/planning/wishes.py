"""What the operator asked for of the load, by keys and by verbatim flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caovand.core.config import Config, PolicySection
from caovand.engines.vllm.planning.pace import WORKLOADS, Workload
from caovand.engines.vllm.planning.spanning import ALONE, Nodes
from caovand.engines.vllm.planning.spelling import whole_number


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
