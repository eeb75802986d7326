"""Plans that would answer too slowly to serve anybody: refused, with what to take instead."""

from __future__ import annotations

from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Plan, Unplannable
from caovand.engines.vllm.machine.link_time import nodes_of
from caovand.engines.vllm.memory.settings import candidate_of_plan, cards_of_plan
from caovand.engines.vllm.sizing.pace import WORKLOADS, Pace

MIN_TOKENS_S = 0.6
"""Modelled tokens a second below which nobody is served: clients give up."""


def refuse_crawling(plan: Plan, inventory: Inventory, remedies: tuple[str, ...] = ()) -> None:
    """Raise Unplannable if every step would wait too long for the weights in host memory.

    An amount that the operator passes stands.
    """
    offload = plan.settings.get("cpu_offload_gb")
    if offload is None or not offload.value or offload.origin != "policy":
        return
    gpus, candidate = cards_of_plan(plan, inventory), candidate_of_plan(plan, inventory)
    pace = Pace(inventory.model, candidate, gpus, WORKLOADS["chat"], nodes_of(inventory))
    tokens_s, gib = pace.answering(candidate), offload.value
    if tokens_s >= MIN_TOKENS_S:
        return
    name = inventory.model.path.rstrip("/").rpartition("/")[2]
    smaller = 'take a smaller model, or a GGUF file of it ([engine] kind = "llamacpp")'
    raise Unplannable(
        f"cannot serve {name} at a usable speed: {gib:g} GiB of weights a card would stay in host"
        f" memory, and vLLM would answer {tokens_s:.1f} tokens a second;"
        f" {', or '.join((*remedies, smaller))}, or pass"
        f" --cpu-offload-gb {gib:g} in [engine] extra_args to start it all the same"
    )
