"""One plan for several machines: their ranks, and the address where these meet, by vLLM's own
`--nnodes` or by Ray."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from caovand.core.config.schema import Config
from caovand.core.engine.record import UNTITLED, MultiNode, NodePlace
from caovand.core.facts.inventory import Gpu, Inventory, device_name
from caovand.core.facts.occupancy import BUSY_MIB, in_use, unoccupied
from caovand.core.plan import Plan, Setting, Unplannable
from caovand.engines.vllm import over_ray
from caovand.engines.vllm.flags.spelling import count, option
from caovand.engines.vllm.machine.ranks import PIPELINE, TENSOR, ranks_here
from caovand.engines.vllm.memory.shards import PARTITION
from caovand.engines.vllm.planning.devices import choose_gpus
from caovand.engines.vllm.planning.environment import JOBS, THREADS

WITHOUT_RDMA = "NCCL_IB_DISABLE"


MULTI_NODE_FLAGS = ("nnodes", "node_rank", "master_addr", "master_port", "headless")


ADDRESSING = (over_ray.HOST_IP, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


OF_ONE_NODE = (*ADDRESSING, "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "OMP_NUM_THREADS", JOBS, THREADS)


_TITLE = re.compile(r"^VLLM::(?:Worker(?:_(?P<rank>\w+))?|(?P<core>EngineCore\w*))")


_ACTOR = "ray::RayWorkerProc"


_NAMED = re.compile(
    r"^(?:\(Worker pid=\d{1,10}\) )?\(Worker_(?P<rank>\w{1,40}) pid=(?P<pid>\d{1,10})\)"
)
"""The prefix of a worker's lines once it has joined the others."""


def spread(
    plan: Plan, machine: Inventory, host: str, port: int, no_rdma: str = "", executor: str = "mp",
    address: str = "",
) -> Plan:  # fmt: skip
    """The plan over this machine and the others, which meet at this host; raises Unplannable.

    The split was planned for the cards of all nodes (`planning.parallel`). A CPU build has one rank
    a node and no cards to split over: there it is tensor parallel unless stages were planned.
    `no_rdma` is why NCCL must not use InfiniBand or RoCE, "" if it may; `address` is the head's own
    towards the others, "" if unknown.
    """
    nodes = 1 + len(machine.others)
    _refuse_typed(plan, nodes, executor)
    settings = dict(plan.settings)
    if executor == over_ray.RAY:
        over_ray.check(plan, machine, address or host)
        settings[over_ray.BACKEND] = Setting(executor, "user", "[cluster] executor")
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
    backend = over_ray.BACKEND
    if backend in plan.verbatim and (typed := plan.value(backend)) != executor:
        remedy = f"remove it, and set [cluster] executor instead, which is {executor}"
        raise Unplannable(f"{cannot} {option(backend)} {typed}; {remedy}")


def usable_cards(config: Config, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards that ranks may use here, in the order of use: those with the most free memory
    first.

    A desktop's use of memory does not change the order. Raises Unplannable.
    """

    def room_mib(gpu: Gpu) -> int:
        return gpu.free_mib if in_use(gpu) >= BUSY_MIB else unoccupied(gpu).free_mib

    return tuple(sorted(choose_gpus(config, inventory), key=room_mib, reverse=True))


def local(plan: Plan, config: Config, inventory: Inventory) -> Plan:
    """The head's plan on another node: with what depends on that one's cards and processors."""
    env = {name: one for name, one in plan.env.items() if name not in OF_ONE_NODE}
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


def own(plan: Plan, place: NodePlace) -> Plan:
    """The part of one node: its rank, and the address that the other nodes reach it at."""
    rank, address, interface = place.rank, place.address, place.interface
    settings = {**plan.settings, "node_rank": Setting(rank, "policy", "the head deals the ranks")}
    if rank:
        settings["headless"] = Setting(True, "policy", "the head alone answers clients")
    reached = Setting(address, "policy", f"this node's address on {interface}")
    by = Setting(interface, "policy", "the interface towards the other nodes")
    env: Mapping[str, Setting] = {over_ray.HOST_IP: reached, "GLOO_SOCKET_IFNAME": by}
    if plan.device != "cpu":
        # NCCL takes a name for the beginning of names, such as eth0 for eth0.100 too.
        exact = Setting(f"={interface}", "policy", "this interface and no other towards the nodes")
        env = {**env, "NCCL_SOCKET_IFNAME": exact}
    if over_ray.is_used(plan):
        env = {**env, **over_ray.environment(place)}
    return replace(plan, settings=settings, env={**env, **plan.env})


def all_reduces(plan: Plan) -> bool:
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
    """Whether Gloo listens where the host's name leads: it takes a name of one letter for none."""
    return len(env.get("GLOO_SOCKET_IFNAME", interface)) < 2


def rank_of(title: str) -> str:
    """The rank in the title of a process, such as "TP1" or "PP1_TP0"; "" if it is none."""
    if title.startswith(_ACTOR):
        return UNTITLED
    found = _TITLE.match(title)
    return (found["rank"] or found["core"] or "") if found else ""


def ranks_in(lines: Sequence[str]) -> dict[int, str]:
    """The ranks named at the beginning of log lines, by pid: Ray gives its actors other titles."""
    found = map(_NAMED.match, lines)
    return {int(one["pid"]): one["rank"] for one in found if one}


NODES = MultiNode(
    usable_cards=usable_cards,
    refusal=over_ray.refusal,
    packages={over_ray.RAY: over_ray.PACKAGE},
    spread=spread,
    adapt=local,
    place=own,
    all_reduces_over_link=all_reduces,
    no_rdma=no_rdma,
    by_host_name=by_host_name,
    rank_of=rank_of,
    ranks_in=ranks_in,
)
