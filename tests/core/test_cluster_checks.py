"""Findings from comparing two nodes: each appears once, with its exact wording."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from caovand.core.cluster.checks import Measurements, Requirements, compare
from caovand.core.cluster.node import NodeCard, NodeFacts
from caovand.core.engine.record import Package
from caovand.core.facts.checks import CheckResult
from tests.core.nodes import HEAD, T4, WORKER, none_fails
from tests.core.test_cluster_node import NODES
from tests.examples import examples

INSTALL = "on gpu2: sudo caovanctl engine install 0.33.0"
AGAIN = f"{INSTALL} --again"
DRIVER = (
    "sudo ubuntu-drivers install (on Debian: cuda-drivers from NVIDIA's repository), then reboot"
)
SHM = "sudo mount -o remount,size=8G /dev/shm (in a container: --shm-size=8g)"
LOOPBACK = (
    "set [cluster] head to a network address, because /etc/hosts can map a name to loopback; or "
    "set [cluster] interface"
)
RAY = Package("Ray", "ray", lambda facts: facts.ray)
NEAR = Measurements(0.0003, 0.01)
A10 = NodeCard("NVIDIA A10", 23028, (8, 6), 23028)


def found(
    head: dict[str, Any] | None = None,
    worker: dict[str, Any] | None = None,
    round_trip_s: float = 0.0003,
    offset_s: float = 0.01,
    package: Package | None = None,
) -> tuple[CheckResult, ...]:
    """What is found with these changes of two equal nodes."""
    one, other = replace(HEAD, **(head or {})), replace(WORKER, **(worker or {}))
    return compare(one, other, Measurements(round_trip_s, offset_s), Requirements(package=package))


def test_equal_nodes_pass_and_it_is_said_in_what() -> None:
    (only,) = results = found()
    assert (only.group, only.verdict, only.remedy) == ("cluster", "PASS", "")
    assert only.text == (
        "gpu2 agrees with head1: caovan 0.2.0, vllm 0.33.0, torch 2.13.0, CUDA 13.0, NCCL "
        "2.30.7, FlashInfer 0.7.1, plugin 0.2.0, Python 3.12, driver 580.95.05, 2 × Tesla T4 "
        "(15 GiB), 2 files of the model; 0.3 ms round trip, its ports have not been checked "
        "yet, 10.0 Gbit/s by its interfaces"
    )
    assert none_fails(results)


def test_without_cards_less_is_named() -> None:
    bare: dict[str, Any] = {
        "version": "0.32.0+cpu", "torch": "2.13.0+cpu", "cuda": "", "nccl": "", "flashinfer": "",
        "plugin": "", "driver": "", "cards": (), "model": {"a.gguf": "a"},
    }  # fmt: skip
    (only,) = found(bare, bare)
    assert only.text == (
        "gpu2 agrees with head1: caovan 0.2.0, vllm 0.32.0+cpu, torch 2.13.0+cpu, Python 3.12, "
        "1 file of the model; 0.3 ms round trip, its ports have not been checked yet, 10.0 "
        "Gbit/s by its interfaces"
    )


@pytest.mark.parametrize(
    ("worker", "text", "remedy"),
    [
        (
            {"caovan": "0.1.0"},
            "caovan differs: 0.2.0 on head1, 0.1.0 on gpu2",
            "on gpu2: sudo apt install ./caovan*.deb, with the packages of 0.2.0",
        ),
        (
            {"caovan": "0.10.0"},  # newer than the head's
            "caovan differs: 0.2.0 on head1, 0.10.0 on gpu2",
            "on head1: sudo apt install ./caovan*.deb, with the packages of 0.10.0",
        ),
        (
            {"engine": "other", "version": "1.0", "torch": "", "python": "3.10.1"},
            "engine differs: vllm on head1, other on gpu2",
            'on gpu2: set [engine] kind = "vllm" in /etc/caovan.toml, then: sudo systemctl restart'
            " caovan",
        ),
        ({"version": "0.32.0"}, "vllm differs: 0.33.0 on head1, 0.32.0 on gpu2", INSTALL),
        ({"torch": "2.12.0"}, "torch differs: 2.13.0 on head1, 2.12.0 on gpu2", AGAIN),
        ({"cuda": "12.9"}, "CUDA differs: 13.0 on head1, 12.9 on gpu2", AGAIN),
        ({"nccl": ""}, "NCCL differs: 2.30.7 on head1, none on gpu2", AGAIN),
        ({"flashinfer": "0.6"}, "FlashInfer differs: 0.7.1 on head1, 0.6 on gpu2", AGAIN),
        (
            {"plugin": ""},
            "caovan's plugin differs: 0.2.0 on head1, none on gpu2",
            "on gpu2: install the package caovan-kernels, then: sudo caovanctl engine install"
            " 0.33.0 --again",
        ),
        (
            {"plugin": "0.3.0"},
            "caovan's plugin differs: 0.2.0 on head1, 0.3.0 on gpu2",
            "on head1: install the package caovan-kernels, then: sudo caovanctl engine install"
            " 0.33.0 --again",
        ),
        (
            {"python": "3.11.9"},
            "the engine's Python differs: 3.12 on head1, 3.11 on gpu2; its processes send each"
            " other pickled objects",
            f"{AGAIN} --python 3.12",
        ),
        (
            {"cards": ()},
            "gpu2 has no NVIDIA card, head1 has 2 × Tesla T4 (15 GiB)",
            "on gpu2: check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        ),
        (
            {"cards": (T4,)},
            "gpu2 offers 1 × Tesla T4 (15 GiB), head1 2 × Tesla T4 (15 GiB), but every node "
            "must run the same number of ranks",
            "on head1: name as many cards as gpu2 offers in [engine] gpus",
        ),
        (
            {"address": "127.0.1.1"},
            "gpu2 would advertise 127.0.1.1, a loopback address that the other nodes cannot reach",
            f"on gpu2: {LOOPBACK}",
        ),
        (
            {"address": "::1"},
            "gpu2 would advertise ::1, a loopback address that the other nodes cannot reach",
            f"on gpu2: {LOOPBACK}",
        ),
        (
            {"listens_at": "127.0.1.1"},
            "the ranks of gpu2 would listen at 127.0.1.1, to which its host name resolves: Gloo"
            " has no interface, because [engine] env removes it or its name is a single letter",
            "on gpu2: remove GLOO_SOCKET_IFNAME from [engine] env, or map the host name to"
            " 10.0.0.2 in /etc/hosts",
        ),
        (
            {"shm_free_mib": 1023},
            "/dev/shm on gpu2 has 1023 MiB free; ranks and NCCL exchange data there",
            f"on gpu2: {SHM}",
        ),
    ],
)
def test_what_keeps_nodes_from_serving_together(
    worker: dict[str, Any], text: str, remedy: str
) -> None:
    results = found(worker=worker)
    assert results == (CheckResult("cluster", "FAIL", text, remedy),)
    assert not none_fails(results)


@pytest.mark.parametrize(
    ("worker", "text", "remedy"),
    [
        (
            {"driver": "580.65.06"},
            "driver differs: 580.95.05 on head1, 580.65.06 on gpu2",
            f"on gpu2: {DRIVER}",
        ),
        (
            {"driver": "610.10"},
            "driver differs: 580.95.05 on head1, 610.10 on gpu2",
            f"on head1: {DRIVER}",
        ),
        (
            {"jit_cache": "0.7.1"},
            "FlashInfer's prebuilt kernels differ: none on head1, 0.7.1 on gpu2",
            AGAIN,
        ),
        (
            {"nvcc": False},
            "gpu2 has no nvcc, but head1 does: a start can fail at the first FlashInfer kernel that"
            " is not built on gpu2",
            AGAIN,
        ),
        (
            {"kernels": ("sm75 sampling", "sm90 sampling")},
            "FlashInfer's kernels are built on head1 but not on gpu2 (sm75"
            " attention-128-float16): a start compiles them there while every node waits",
            "on gpu2: sudo caovanctl engine build-kernels",
        ),
        (
            {"kernels": (*HEAD.kernels, "sm75 attention-256-fp8")},
            "FlashInfer's kernels are built on gpu2 but not on head1 (sm75 "
            "attention-256-fp8): a start compiles them there while every node waits",
            "on head1: sudo caovanctl engine build-kernels",
        ),
        (
            {"mtu": 1500},
            "MTU differs: 9000 on head1, 1500 on gpu2; the smaller one applies",
            "on gpu2: sudo ip link set eth0 mtu 9000, if every switch between them forwards "
            "such packets",
        ),
        (
            {"cards": (T4, A10)},
            "cards differ: 2 × Tesla T4 (15 GiB) on head1, 1 × NVIDIA A10 (22 GiB), 1 × Tesla "
            "T4 (15 GiB) on gpu2; each stage gets layers according to its cards' memory and "
            "speed",
            "use equal cards where all-reduces cross the nodes, for example by [engine] gpus",
        ),
        (
            {"p2p": False},
            "the cards of head1 can access each other's memory, those of gpu2 cannot: with several "
            "ranks per node gpu2 slows down all nodes",
            "on gpu2: check `nvidia-smi topo -p2p r`, the IOMMU (`iommu=pt`) and ACS of the "
            "PCIe bridges; many consumer cards have no peer access",
        ),
    ],
)
def test_what_only_costs_speed(worker: dict[str, Any], text: str, remedy: str) -> None:
    results = found(worker=worker)
    assert results == (CheckResult("cluster", "WARN", text, remedy),)
    assert none_fails(results)


def test_cards_that_differ_hold_each_other_back_where_layers_are_summed_over_them() -> None:
    (only,) = compare(HEAD, replace(WORKER, cards=(T4, A10)), NEAR, Requirements(all_reduces=True))
    assert only.text.endswith(" on gpu2; the smallest card limits the share of all")
    assert only.remedy == "use equal cards, for example by [engine] gpus"


def test_peer_to_peer_counts_between_the_ranks_of_a_node() -> None:
    without = replace(WORKER, p2p=False)
    (only,) = compare(HEAD, without, NEAR, Requirements(ranks=2))
    assert only.text.endswith("those of gpu2 cannot: gpu2 slows down all nodes")
    assert compare(HEAD, without, NEAR, Requirements(ranks=1))[0].verdict == "PASS"


def test_what_is_no_difference() -> None:
    """Patch releases of Python, a few MiB that another driver keeps of a card, what is unknown."""
    same = {"python": "3.12.1", "cards": (replace(T4, memory_mib=15350), T4), "p2p": None}
    assert found(worker=same)[0].verdict == "PASS"
    neither = {"p2p": False}
    assert found(neither, neither)[0].verdict == "PASS"


def test_a_cpu_build_is_installed_as_one() -> None:
    results = found({"version": "0.32.0+cpu"}, {"version": "0.33.0+cpu"})
    assert results[0].remedy == "on gpu2: sudo caovanctl engine install 0.32.0 --build cpu"


def test_a_driver_that_is_too_old_for_its_cuda_is_named_too() -> None:
    text = "driver 570.86 on gpu2 is too old for CUDA 13.0"
    remedy = f"on gpu2: install driver 580.65 or newer: {DRIVER}"
    assert found(worker={"driver": "570.86"})[0] == CheckResult("cluster", "WARN", text, remedy)


def test_cards_that_the_head_lacks() -> None:
    (only,) = found(head={"cards": ()})
    assert only.text == "head1 has no NVIDIA card, gpu2 has 2 × Tesla T4 (15 GiB)"
    assert only.remedy.startswith("on head1: ")


def test_a_tunnel_is_named_on_each_of_its_ends() -> None:
    ends = {"interface": "wg0", "mtu": 1420}
    assert found(ends, ends) == tuple(
        CheckResult(
            "cluster",
            "WARN",
            f"the MTU of wg0 on {name} is 1420, less than Ethernet's: tunnels are slow",
            f"on {name}: set [cluster] interface to that of a direct link on every node, and "
            "restart caovan",
        )
        for name in ("head1", "gpu2")
    )


def test_a_finding_about_the_head_is_the_same_for_each_worker() -> None:
    head: dict[str, Any] = {"address": "127.0.0.1", "shm_free_mib": 0}
    results = found(head), found(head, {"name": "gpu3", "address": "10.0.0.3"})
    assert results[0] == results[1]
    assert [one.remedy for one in results[0]] == [f"on head1: {LOOPBACK}", f"on head1: {SHM}"]


# -- the model ---


def model(*names: str, **changed: str) -> dict[str, Any]:
    return {"model": {name: changed.get(name, f"digest of {name}") for name in names}}


COPY = "USER@10.0.0.1:/srv/models/Qwen3-8B/ /srv/models/Qwen3-8B/"


@pytest.mark.parametrize(
    ("worker", "text", "options"),
    [
        (model("a", "b"), "gpu2 lacks 1 file (c) of the model that head1 has", "-aL"),
        (model(), "gpu2 lacks 3 files (a, b, c) of the model that head1 has", "-aL"),
        (
            model("a", "b", "c", "d"),
            "gpu2 has 1 file (d) of the model that head1 lacks",
            "-aL --delete",
        ),
        (
            model("a", "b", "c", a="x", c="y"),
            "2 files (a, c) of the model on gpu2 and head1 differ",
            "-aLc",
        ),
    ],
)
def test_another_model_is_named_by_its_files(
    worker: dict[str, Any], text: str, options: str
) -> None:
    remedy = f"on gpu2: sudo rsync {options} {COPY}"
    results = found(model("a", "b", "c"), worker)
    assert results == (CheckResult("cluster", "FAIL", text, remedy),)


def test_all_three_are_named_with_the_command_for_all() -> None:
    results = found(model("a", "b"), model("b", "c", b="x"))
    assert [one.verdict for one in results] == ["FAIL"] * 3
    assert {one.remedy for one in results} == {f"on gpu2: sudo rsync -aLc --delete {COPY}"}


def test_of_many_files_three_are_named() -> None:
    (only,) = found(model(*"abcde"), model())
    assert only.text == "gpu2 lacks 5 files (a, b, c and 2 more) of the model that head1 has"


def test_a_model_that_only_the_worker_has_is_copied_the_other_way() -> None:
    (only,) = found({**model(), "model_folder": ""}, model("a"))
    assert only.text == "head1 has no file of the model, gpu2 has 1 file (a)"
    assert only.remedy == (
        "on head1: sudo rsync -aL USER@10.0.0.2:/srv/models/Qwen3-8B/ /srv/models/Qwen3-8B/"
    )


def test_a_model_that_neither_has_cannot_be_compared() -> None:
    (only,) = found(model(), model())
    assert (only.verdict, only.text, only.remedy) == (
        "WARN",
        "neither head1 nor gpu2 has the model: each would download its own copy",
        "download it on both: sudo caovanctl model pull OWNER/NAME",
    )


def test_the_command_is_safe_for_a_shell() -> None:
    head = {"address": "fd00::1", "model_folder": "/srv/my model"}
    worker = {"model_folder": "/x;reboot", "model": {}}
    assert found(head, worker)[0].remedy == (
        "on gpu2: sudo rsync -aL 'USER@[fd00::1]:/srv/my model/' '/x;reboot/'"
    )


# -- time ---


@pytest.mark.parametrize(("offset_s", "side"), [(3.21, "ahead of"), (-3.21, "behind")])
def test_a_wrong_clock_is_named(offset_s: float, side: str) -> None:
    (only,) = found(offset_s=offset_s)
    assert (only.verdict, only.text, only.remedy) == (
        "WARN",
        f"the clock of gpu2 is 3.2 s {side} that of head1: their logs cannot be compared",
        "on gpu2: sudo timedatectl set-ntp true",
    )


def test_a_long_way_is_named() -> None:
    (only,) = found(round_trip_s=0.0123)
    assert (only.verdict, only.text, only.remedy) == (
        "WARN",
        "the round trip from head1 to gpu2 takes 12.3 ms, and every layer waits for it",
        "connect them directly or through one switch",
    )


def test_what_is_just_good_enough_is_not_named() -> None:
    edge = {"mtu": 1500, "shm_free_mib": 1024}
    assert found(edge, edge, round_trip_s=0.002, offset_s=1.0)[0].verdict == "PASS"


@examples(200)
@given(NODES, NODES)
def test_any_two_nodes_can_be_compared(head: NodeFacts, worker: NodeFacts) -> None:
    results = compare(head, worker, Measurements(0.001, 0.0), Requirements())
    assert results
    assert all("\n" not in one.text + one.remedy for one in results)
    assert compare(head, worker, Measurements(0.001, 0.0), Requirements()) == results


@pytest.mark.parametrize(
    ("head", "worker", "texts"),
    [
        ("2.60.0", "2.59.1", ["Ray differs: 2.60.0 on head1, 2.59.1 on gpu2"]),
        ("2.60.0", "", ["Ray is not installed in the engine's environment on gpu2"]),
        ("", "", [f"Ray is not installed in the engine's environment on {name}"
                  for name in ("head1", "gpu2")]),
    ],
)  # fmt: skip
def test_rays_release_counts_where_it_starts_the_ranks(
    head: str, worker: str, texts: list[str]
) -> None:
    results = found({"ray": head}, {"ray": worker}, package=RAY)
    assert [one.text for one in results] == texts
    assert not none_fails(results)
    wanted = f"ray=={head}" if head else "ray"
    assert all(f"-m pip install {wanted}, where ENGINE is" in one.remedy for one in results)
    assert none_fails(found({"ray": head}, {"ray": worker}))


def test_ray_is_named_where_it_starts_the_ranks() -> None:
    (only,) = found(package=RAY)
    assert "NCCL 2.30.7, Ray 2.60.0, FlashInfer" in only.text
