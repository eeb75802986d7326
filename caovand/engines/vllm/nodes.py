"""One plan for several machines: their ranks, and the address where these meet, by vLLM's own
`--nnodes` or by Ray.

A plan over nodes is the same with both executors. With Ray, the launcher `adapters/ray_in_env` does
what `--nnodes` does otherwise: it starts Ray on each node, waits on the head until every node has
joined with its cards, and starts vLLM there.

Read in vLLM 0.21 and 0.32: RayExecutorV2 deals ranks to the head's cards first, then to the other
nodes in the order of their ids in Ray, which are random.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import caovand
from caovand.core.config.schema import Config
from caovand.core.engine.record import UNTITLED, MultiNode, NodePlace, Package
from caovand.core.facts.inventory import EngineInfo, Gpu, Inventory, device_name, version_numbers
from caovand.core.facts.occupancy import BUSY_MIB, in_use, unoccupied
from caovand.core.plan import Plan, Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import count, option
from caovand.engines.vllm.machine.ranks import PIPELINE, REPLICAS, TENSOR, are_alike, ranks_here
from caovand.engines.vllm.memory.settings import cards_of_plan
from caovand.engines.vllm.memory.shards import PARTITION
from caovand.engines.vllm.planning.devices import choose_gpus
from caovand.engines.vllm.planning.environment import JOBS, THREADS

BACKEND = "distributed_executor_backend"
RAY = "ray"
RAY_PACKAGE = Package("Ray", "ray", attrgetter("ray"))
RAY_NODES = "CAOVAN_RAY_NODES"
"""The variable with the addresses of all nodes, for the head's launcher."""
LAUNCHER = str(Path(caovand.__file__).parent / "adapters" / "ray_in_env")
CANNOT_USE_RAY = "serve from several nodes over Ray"
USE_MP = 'set [cluster] executor = "mp"'
MULTI_NODE_FLAGS = ("nnodes", "node_rank", "master_addr", "master_port", "headless")
"""Flags that are planned here; with Ray they are the launcher's, and vLLM gets none of them."""
WITHOUT_RDMA = "NCCL_IB_DISABLE"
HOST_IP = "VLLM_HOST_IP"
"""The address at which the other nodes reach this one."""
ADDRESSING = (HOST_IP, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
ONE_NODE_VARIABLES = (
    *ADDRESSING, "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "OMP_NUM_THREADS", JOBS, THREADS
)  # fmt: skip
"""Variables whose values on the head do not apply to another node."""
_WORKER_TITLE = re.compile(r"^VLLM::(?:Worker(?:_(?P<rank>\w+))?|(?P<core>EngineCore\w*))")
_ACTOR_TITLE = "ray::RayWorkerProc"
_RANK_PREFIX = re.compile(
    r"^(?:\(Worker pid=\d{1,10}\) )?\(Worker_(?P<rank>\w{1,40}) pid=(?P<pid>\d{1,10})\)"
)
"""The prefix of a worker's lines once it has joined the others."""


def ray_refusal(executor: str, engine: EngineInfo) -> Problem | None:
    """Why this engine cannot start its ranks over Ray; None if it can."""
    if executor != RAY:
        return None
    if engine.build == "cpu":
        return Problem(CANNOT_USE_RAY, "vLLM does not support Ray on CPUs", USE_MP)
    if engine.release < releases.RAY_EXECUTOR_V2:
        oldest = releases.name(releases.RAY_EXECUTOR_V2)
        fact = f"caovan supports vLLM over Ray from {oldest} on, but this is {engine.version}"
        return Problem(CANNOT_USE_RAY, fact, f"use a newer vLLM, or {USE_MP}")
    install = f"sudo {engine.python} -m pip install"
    if not engine.ray:
        fix = f"run `{install} ray` on every node, or {USE_MP}"
        return Problem(CANNOT_USE_RAY, "Ray is not installed in the engine's environment", fix)
    if version_numbers(engine.ray) < releases.RAY_HAS_TOKENS:
        oldest = releases.name(releases.RAY_HAS_TOKENS)
        fact = (
            f"Ray {engine.ray} runs code from anyone who can reach it; {oldest} is the first "
            "release that requires a token"
        )
        fix = f"run `{install} --upgrade ray` on every node, or {USE_MP}"
        return Problem(CANNOT_USE_RAY, f"{fact} for a token", fix)
    return None


def check_ray(plan: Plan, machine: Inventory, address: str) -> None:
    """Raise Unplannable if these nodes, with a head at this address, cannot carry out the plan over
    Ray."""
    nodes = 1 + len(machine.others)
    cannot = f"cannot plan for {nodes} nodes over Ray"
    if ":" in address:
        fact = f"the head's address {address} is IPv6, but caovan starts Ray over IPv4"
        raise Unplannable(f"{cannot}: {fact}; set [cluster] head to an IPv4 address")
    if (count(plan.value(REPLICAS)) or 1) > 1:
        raise Unplannable(f"{cannot}: extra_args has --data-parallel-size; remove it")
    if nodes < 3 or (count(plan.value(PIPELINE)) or 1) == 1:
        return  # Ray has only one other node to choose, or all have an equal part of every layer
    cards = cards_of_plan(plan, machine)
    if not all(are_alike(cards[0], card) for card in cards):
        fact = "their cards differ, and Ray can assign one node's layers to another node"
        raise Unplannable(f"{cannot}: {fact}; use equal cards, or {USE_MP}")
    if PARTITION in plan.env:
        fact = (
            f"[engine] env has {PARTITION}, but Ray can run a stage on a different node than its "
            "rank's"
        )
        raise Unplannable(f"{cannot}: {fact}; remove it, or {USE_MP}")


def uses_ray(plan: Plan) -> bool:
    """Whether this plan belongs to several nodes whose ranks Ray starts."""
    return plan.value(BACKEND) == RAY and plan.value("nnodes") is not None


def ray_environment(place: NodePlace) -> dict[str, Setting]:
    """The variables that Ray, its actors and its driver on this node share.

    Ray admits anyone who can reach its ports unless it has a token.
    """
    variables = {
        "RAY_AUTH_MODE": Setting("token", "policy", "Ray admits no node without the token"),
        "RAY_AUTH_TOKEN": Setting(place.token, "policy", "of the cluster's key"),
    }
    if place.rank == 0:
        every = ",".join((place.address, *place.others))
        variables[RAY_NODES] = Setting(every, "policy", "vLLM starts once all of them have joined")
    return variables


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


def spread(
    plan: Plan, machine: Inventory, host: str, port: int, no_rdma: str = "", executor: str = "mp",
    address: str = "",
) -> Plan:  # fmt: skip
    """The plan over this machine and the others, which meet at this host; raises Unplannable.

    The split was planned for the cards of all nodes (`planning.parallel`). A CPU build has one rank
    per node and no cards to split over: there it is tensor parallel unless stages were planned.
    `no_rdma` is why NCCL must not use InfiniBand or RoCE, "" if it may; `address` is the head's own
    on the other nodes' network, "" if unknown.
    """
    nodes = 1 + len(machine.others)
    _refuse_typed(plan, nodes, executor)
    settings = dict(plan.settings)
    if executor == RAY:
        check_ray(plan, machine, address or host)
        settings[BACKEND] = Setting(executor, "user", "[cluster] executor")
    over = f"{nodes} nodes, [cluster]"
    settings["nnodes"] = Setting(nodes, "user", over)
    settings["master_addr"] = Setting(host, "policy", "the head's address in [cluster]")
    settings["master_port"] = Setting(port, "policy", "the port after the head's in [cluster]")
    staged = plan.value(PIPELINE) is not None
    if plan.device == "cpu" and not staged and TENSOR not in plan.verbatim:
        settings[TENSOR] = Setting(nodes, "policy", f"one part on each of {over}")
    # A plan that is retried keeps what an earlier start found about the devices.
    env = dict(plan.env)
    if WITHOUT_RDMA in env and env[WITHOUT_RDMA].origin == "policy":
        del env[WITHOUT_RDMA]
    if no_rdma and plan.device != "cpu":
        env = {WITHOUT_RDMA: Setting("1", "policy", no_rdma), **env}
    return replace(plan, settings=settings, env=env)


def _refuse_typed(plan: Plan, nodes: int, executor: str) -> None:
    """Raise Unplannable if the operator's flags set what is decided here."""
    cannot = f"cannot plan for {nodes} nodes: extra_args has"
    for name in MULTI_NODE_FLAGS:
        if name in plan.verbatim:
            raise Unplannable(f"{cannot} {option(name)}; remove it")
    backend = BACKEND
    if backend in plan.verbatim and (typed := plan.value(backend)) != executor:
        remedy = f"remove it, and set [cluster] executor instead, now {executor}"
        raise Unplannable(f"{cannot} {option(backend)} {typed}; {remedy}")


def usable_cards(config: Config, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards that ranks may use here, in the order of use: those with the most free memory
    first.

    A desktop's use of memory does not change the order. Raises Unplannable.
    """

    def room_mib(gpu: Gpu) -> int:
        return gpu.free_mib if in_use(gpu) >= BUSY_MIB else unoccupied(gpu).free_mib

    return tuple(sorted(choose_gpus(config, inventory), key=room_mib, reverse=True))


def plan_on_node(plan: Plan, config: Config, inventory: Inventory) -> Plan:
    """The head's plan on another node: with what depends on that one's cards and processors."""
    env = {name: setting for name, setting in plan.env.items() if name not in ONE_NODE_VARIABLES}
    if inventory.gpus and inventory.engine.build == "cuda":
        names = ",".join(map(device_name, _cards_of_ranks(plan, config, inventory)))
        env["CUDA_VISIBLE_DEVICES"] = Setting(names, "policy", "the cards of this node")
    if inventory.engine.cuda_home:
        env["CUDA_HOME"] = Setting(inventory.engine.cuda_home, "policy", "this engine's compiler")
    typed = {
        name: Setting(value, "user", "[engine] env of this node")
        for name, value in config.engine.env
        if name != PARTITION  # layers are dealt once, for all nodes
    }
    return replace(plan, env={**env, **typed})


def _cards_of_ranks(plan: Plan, config: Config, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards that the head's plan uses here."""
    ranks = ranks_here(plan.values, count(plan.value("nnodes")) or 1)
    cards = usable_cards(config, inventory)
    if len(cards) < ranks:
        raise Unplannable(
            f"cannot run {ranks} ranks of the head's plan: this node offers {len(cards)} cards;"
            " check `nvidia-smi` and [engine] gpus",
            "gpu-absent",
        )
    return cards[:ranks]


def plan_of_rank(plan: Plan, place: NodePlace) -> Plan:
    """The part of one node: its rank, and the address that the other nodes reach it at."""
    rank, address, interface = place.rank, place.address, place.interface
    settings = {**plan.settings, "node_rank": Setting(rank, "policy", "the head assigns the ranks")}
    if rank:
        settings["headless"] = Setting(True, "policy", "only the head serves clients")
    reached = Setting(address, "policy", f"this node's address on {interface}")
    by = Setting(interface, "policy", "the interface that reaches the other nodes")
    env: Mapping[str, Setting] = {HOST_IP: reached, "GLOO_SOCKET_IFNAME": by}
    if plan.device != "cpu":
        # NCCL treats a name as a prefix: eth0 also matches eth0.100.
        exact = Setting(f"={interface}", "policy", "this interface alone, by its exact name")
        env = {**env, "NCCL_SOCKET_IFNAME": exact}
    if uses_ray(plan):
        env = {**env, **ray_environment(place)}
    return replace(plan, settings=settings, env={**env, **plan.env})


def all_reduces_over_link(plan: Plan) -> bool:
    """Whether tensor parallel reaches over nodes: there are fewer stages than nodes."""
    return int(plan.value(PIPELINE) or 1) < int(plan.value("nnodes") or 1)


def no_rdma(env: Mapping[str, str]) -> str:
    """Why NCCL uses no InfiniBand or RoCE with this [engine] env, "" where that does not say so."""
    return f"[engine] env sets {WITHOUT_RDMA}" if _is_set(env.get(WITHOUT_RDMA, "")) else ""


def _is_set(value: str) -> bool:
    """Whether NCCL reads a variable as set: as a number other than 0, any word as 0."""
    number = value.strip()
    digits = number[1:] if number.startswith(("+", "-")) else number
    return digits.lstrip("0").startswith(tuple("123456789"))


def by_host_name(env: Mapping[str, str], interface: str) -> bool:
    """Whether Gloo listens where the host's name leads: it treats a one-letter name as none."""
    return len(env.get("GLOO_SOCKET_IFNAME", interface)) < 2


def rank_of(title: str) -> str:
    """The rank in the title of a process, such as "TP1" or "PP1_TP0"; "" if it is none."""
    if title.startswith(_ACTOR_TITLE):
        return UNTITLED
    title_parts = _WORKER_TITLE.match(title)
    return (title_parts["rank"] or title_parts["core"] or "") if title_parts else ""


def ranks_in(lines: Sequence[str]) -> dict[int, str]:
    """The ranks named at the beginning of log lines, by pid: Ray gives its actors other titles."""
    prefixes = map(_RANK_PREFIX.match, lines)
    return {int(prefix["pid"]): prefix["rank"] for prefix in prefixes if prefix}


NODES = MultiNode(
    usable_cards=usable_cards,
    refusal=ray_refusal,
    packages={RAY: RAY_PACKAGE},
    spread=spread,
    adapt=plan_on_node,
    place=plan_of_rank,
    all_reduces_over_link=all_reduces_over_link,
    no_rdma=no_rdma,
    by_host_name=by_host_name,
    rank_of=rank_of,
    ranks_in=ranks_in,
)
