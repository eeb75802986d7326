"""vLLM's ranks as Ray actors, for [cluster] executor = "ray".

A plan over nodes is the same with both executors. With Ray, the launcher `adapters/ray_in_env` does
what vLLM's own `--nnodes` does otherwise: it starts Ray on each node, waits on the head until every
node has joined with its cards, and starts vLLM there.

Read in vLLM 0.21 and 0.32: RayExecutorV2 deals ranks to the head's cards first, then to the other
nodes in the order of their ids in Ray, which are random.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import caovand
from caovand.core.engine.record import NodePlace, Package
from caovand.core.facts.inventory import EngineInfo, Inventory, version_numbers
from caovand.core.plan import Plan, Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import count
from caovand.engines.vllm.machine.ranks import PIPELINE, REPLICAS, TENSOR, alike
from caovand.engines.vllm.memory.settings import cards_of_plan
from caovand.engines.vllm.memory.shards import PARTITION

BACKEND = "distributed_executor_backend"


RAY = "ray"


PACKAGE = Package("Ray", "ray", attrgetter("ray"))


LAUNCHERS = frozenset({"nnodes", "node_rank", "master_addr", "master_port", "headless"})
"""Settings of a plan over nodes that the launcher uses, not vLLM."""


NODES = "CAOVAN_RAY_NODES"
"""The variable with the addresses of all nodes, for the head's launcher."""


HOST_IP = "VLLM_HOST_IP"


LAUNCHER = str(Path(caovand.__file__).parent / "adapters" / "ray_in_env")


CANNOT = "serve from several nodes over Ray"


USE_MP = 'set [cluster] executor = "mp"'


def refusal(executor: str, engine: EngineInfo) -> Problem | None:
    """Why this engine cannot start its ranks over Ray; None if it can."""
    if executor != RAY:
        return None
    if engine.build == "cpu":
        return Problem(CANNOT, "vLLM refuses Ray on CPU", USE_MP)
    if engine.release < releases.RAY_EXECUTOR_V2:
        oldest = releases.name(releases.RAY_EXECUTOR_V2)
        fact = f"caovan supports vLLM over Ray from {oldest} on, and this is {engine.version}"
        return Problem(CANNOT, fact, f"use a newer vLLM, or {USE_MP}")
    install = f"sudo {engine.python} -m pip install"
    if not engine.ray:
        fix = f"run `{install} ray` on every node, or {USE_MP}"
        return Problem(CANNOT, "Ray is not installed in the engine's environment", fix)
    if version_numbers(engine.ray) < releases.RAY_HAS_TOKENS:
        oldest = releases.name(releases.RAY_HAS_TOKENS)
        fact = (
            f"Ray {engine.ray} runs the code of anyone who reaches it; {oldest} is the first to ask"
        )
        fix = f"run `{install} --upgrade ray` on every node, or {USE_MP}"
        return Problem(CANNOT, f"{fact} for a token", fix)
    return None


def check(plan: Plan, machine: Inventory, address: str) -> None:
    """Raise Unplannable if these nodes, with a head at this address, cannot carry out the plan over
    Ray."""
    nodes = 1 + len(machine.others)
    cannot = f"cannot plan for {nodes} nodes over Ray"
    if ":" in address:
        fact = f"the head's address {address} is an IPv6 one, and caovan starts Ray over IPv4"
        raise Unplannable(f"{cannot}: {fact}; set [cluster] head to an IPv4 address")
    if (count(plan.value(REPLICAS)) or 1) > 1:
        raise Unplannable(f"{cannot}: extra_args has --data-parallel-size; remove it")
    if nodes < 3 or (count(plan.value(PIPELINE)) or 1) == 1:
        return  # Ray has only one other node to choose, or all have an equal part of every layer
    cards = cards_of_plan(plan, machine)
    if not all(alike(cards[0], card) for card in cards):
        fact = "their cards differ, and Ray may deal the layers of one node to another"
        raise Unplannable(f"{cannot}: {fact}; use equal cards, or {USE_MP}")
    if PARTITION in plan.env:
        fact = (
            f"[engine] env has {PARTITION}, and Ray may run a stage on another node than its rank's"
        )
        raise Unplannable(f"{cannot}: {fact}; remove it, or {USE_MP}")


def is_used(plan: Plan) -> bool:
    """Whether this plan belongs to several nodes whose ranks Ray starts."""
    return plan.value(BACKEND) == RAY and plan.value("nnodes") is not None


def environment(place: NodePlace) -> dict[str, Setting]:
    """The variables that Ray, its actors and its driver on this node share.

    Ray admits everybody who reaches its ports unless it has a token.
    """
    found = {
        "RAY_AUTH_MODE": Setting("token", "policy", "Ray admits nobody without the token"),
        "RAY_AUTH_TOKEN": Setting(place.token, "policy", "of the cluster's key"),
    }
    if place.rank == 0:
        every = ",".join((place.address, *place.others))
        found[NODES] = Setting(every, "policy", "vLLM starts once all of them have joined")
    return found


def launch_command(plan: Plan, argv: Sequence[str]) -> list[str]:
    """The command line of a node: Ray, and on the head vLLM's own, `argv`, as well."""
    nodes = int(plan.value("nnodes"))
    ranks = (count(plan.value(TENSOR)) or 1) * (count(plan.value(PIPELINE)) or 1)
    head = plan.value("master_addr")
    own = plan.env.get(HOST_IP)  # none yet in a plan that is only displayed
    words = [
        argv[0], LAUNCHER, "--address", f"{head}:{plan.value('master_port')}",
        "--own", str(own.value if own else head), "--cards", str(max(ranks // nodes, 1)),
    ]  # fmt: skip
    return words if plan.value("headless") else [*words, "--", *argv]
