"""Tensor parallel over a link, or stages: the modelled time of a token decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.facts.inventory import Inventory, Node
from caovand.core.facts.network import Network
from caovand.core.plan import Plan, Unplannable
from caovand.engines.vllm.machine.link_time import (
    TokenWork,
    compare_tensor_parallel,
    time_pipeline,
    time_tensor_parallel,
)
from tests.core.machines import H200, LLAMA_70B_AWQ, QWEN_27B_AWQ, inventory, named, plan, turing

WORK = TokenWork(
    hidden=5000, layers=64, vocabulary=250_000, element=2, read=14e9, prompt=4000, answer=500
)
SLOW, FAST = Network(1.25e9, 200e-6), Network(12.5e9, 10e-6)
SPEEDS = (700e9, 700e9)


def test_tensor_parallel_by_hand() -> None:
    """Of two nodes a ring has 2 turns and sends the whole once: 128 sums of 10 kB, 8 us, 200 us
    and NCCL's 40 us each; half of 500 kB of logits (200 us) and a turn (100 us); the prompt's 128
    sums of 40 MB, 4.1 s, are shared by 500 tokens. Each node reads 7 GB in 10 ms."""
    found = time_tensor_parallel(WORK, SLOW, SPEEDS)
    assert found.on_link * 1e3 == pytest.approx(128 * 0.248 + 0.2 + 0.1 + 4096 / 500, rel=1e-6)
    assert found.seconds * 1e3 == pytest.approx(10 + found.on_link * 1e3)


def test_a_pipeline_by_hand() -> None:
    """One hop of 20 kB (16 us) there, a token back, 100 us each; the prompt's 80 MB take 64 ms. The
    nodes read 7 GB one after the other."""
    found = time_pipeline(WORK, SLOW, SPEEDS)
    assert found.on_link * 1e3 == pytest.approx(0.016 + 0.2 + 64 / 500, rel=1e-6)
    assert found.seconds * 1e3 == pytest.approx(20 + found.on_link * 1e3)


def test_the_link_decides_and_the_reason_has_the_figures() -> None:
    slow, why = compare_tensor_parallel(WORK, SLOW, SPEEDS)
    assert not slow
    assert why == (
        "over this link (1.25 GB/s, 0.2 ms round trip) a token takes 50.2 ms with tensor "
        "parallel, 40.2 ms of them on the link, and 20.3 ms in stages (modelled)"
    )
    assert compare_tensor_parallel(WORK, FAST, SPEEDS)[0]
    _, of_tcp = compare_tensor_parallel(WORK, replace(SLOW, rdma=True), SPEEDS)
    assert of_tcp == (f"{why}; that is TCP over their interfaces, but NCCL uses InfiniBand or RoCE")


def test_sums_of_many_users_take_the_link_longer_and_stages_share_them() -> None:
    many = replace(WORK, users=64)
    assert compare_tensor_parallel(WORK, FAST, SPEEDS)[0]
    assert not compare_tensor_parallel(many, FAST, SPEEDS)[0]
    assert (
        time_tensor_parallel(many, FAST, SPEEDS).on_link
        > 5 * time_tensor_parallel(WORK, FAST, SPEEDS).on_link
    )


LINKS = st.builds(Network, st.floats(1e7, 1e11), st.floats(1e-6, 1e-2))


@given(link=LINKS, better=st.floats(1, 100), nodes=st.integers(2, 8))
def test_a_better_link_never_takes_longer(link: Network, better: float, nodes: int) -> None:
    speeds = (700e9,) * nodes
    for other in (
        replace(link, bytes_s=link.bytes_s * better),
        replace(link, round_trip_s=link.round_trip_s / better),
    ):
        for way in (time_tensor_parallel, time_pipeline):
            assert way(WORK, other, speeds).seconds <= way(WORK, link, speeds).seconds
            assert way(WORK, link, speeds).on_link > 0


@given(link=LINKS, nodes=st.integers(2, 8), slower=st.floats(1, 10))
def test_one_slow_node_slows_both(link: Network, nodes: int, slower: float) -> None:
    even = (700e9,) * nodes
    uneven = (*even[1:], 700e9 / slower)
    for way in (time_tensor_parallel, time_pipeline):
        assert way(WORK, link, uneven).seconds >= way(WORK, link, even).seconds


def over(machine: Inventory, link: Network | None, **sections: object) -> Plan:
    others = (Node("n2", machine.gpus),)
    return plan(replace(machine, others=others, link=link), **sections)


def split(found: Plan) -> tuple[object, object]:
    return found.value("tensor_parallel_size"), found.value("pipeline_parallel_size")


def test_the_plan_follows_the_link_and_says_why() -> None:
    machine = inventory(gpus=turing(2))
    assert split(over(machine, None)) == split(over(machine, SLOW)) == (2, 2)
    assert split(over(machine, FAST)) == (4, None)
    unmeasured = over(machine, None).settings["pipeline_parallel_size"].reason
    assert unmeasured.endswith("speed of their link is unknown, and stages use it least")
    for link, name in ((SLOW, "pipeline_parallel_size"), (FAST, "tensor_parallel_size")):
        reason = over(machine, link).settings[name].reason
        assert "2 nodes, [cluster]: over this link (" in reason
        assert reason.endswith("in stages (modelled)")


@pytest.mark.parametrize("busy_mib", [0, 6000, 12000, 18000])
def test_ranks_are_as_many_on_each_node_also_beside_a_busy_card(busy_mib: int) -> None:
    first, second = named("RTX 3090") * 2
    cards = (first, replace(second, index=1, free_mib=second.free_mib - busy_mib))
    others = (Node("n2", (first, replace(second, index=1))),)
    for link in (SLOW, FAST, Network(2.8e9, 30e-6)):
        found = plan(replace(inventory(gpus=cards), others=others, link=link))
        ranks = found.value("tensor_parallel_size") * (found.value("pipeline_parallel_size") or 1)
        assert ranks in (2, 4), found.settings


def test_a_typed_split_is_kept_whatever_the_link() -> None:
    machine = inventory(gpus=turing(2))
    typed = {"engine": {"extra_args": ["--pipeline-parallel-size", "2"]}}
    assert split(over(machine, FAST, **typed)) == (2, 2)
    assert split(over(machine, FAST, policy={"tensor_parallel_size": 1})) == (1, 2)
    both = {"engine": {"extra_args": ["-tp", "4"]}}
    assert split(over(machine, SLOW, **both)) == (4, None)


TYPED_2: dict[str, object] = {"engine": {"extra_args": ["--tensor-parallel-size", "2"]}}


def idle(found: Plan) -> list[str]:
    return [text for text in found.warnings if "spans 2 nodes" in text]


@pytest.mark.parametrize("link", [None, SLOW, FAST])
def test_a_typed_split_that_fits_into_each_node_stays_inside(link: Network | None) -> None:
    found = over(inventory(gpus=turing(2)), link, **TYPED_2)
    assert split(found) == (2, 2)
    assert found.settings["pipeline_parallel_size"].reason == (
        "one stage on each of 2 nodes, [cluster]: --tensor-parallel-size 2 fits into each of them"
    )
    assert idle(found) == []
    assert split(over(inventory(gpus=turing(1)), link, **TYPED_2)) == (2, None), "it does not fit"
    assert split(plan(inventory(gpus=turing(2)), **TYPED_2)) == (2, None), "there is one node"


def test_cards_that_a_typed_split_leaves_idle_are_named() -> None:
    both = {"engine": {"extra_args": ["-tp", "2", "-pp", "1"]}}
    found = over(inventory(gpus=turing(2)), FAST, **both)
    assert split(found) == (2, 1)
    assert idle(found) == [
        "--tensor-parallel-size 2 spans 2 nodes: only 1 of 2 cards on each serve; use"
        " --pipeline-parallel-size 2, or remove both"
    ]
    stageless = replace(QWEN_27B_AWQ, architecture="DeepseekV4ForConditionalGeneration")
    found = over(inventory(stageless, gpus=turing(2)), FAST, **TYPED_2)
    assert split(found) == (2, None)
    (text,) = idle(found)
    assert text.endswith(
        "serve, as vLLM 0.21.0 does not support stages for DeepseekV4ForConditionalGeneration; "
        "use 4, or remove it"
    )
    one = {"engine": {"extra_args": ["-tp", "1"]}}
    with pytest.raises(
        Unplannable, match=r"cannot plan for 2 nodes: .* does not support stages for"
    ):
        over(inventory(stageless, gpus=turing(2)), FAST, **one)


def test_cards_that_differ_and_shapes_that_do_not_divide_are_stages() -> None:
    machine = inventory(gpus=named("RTX 3090"))
    mixed = replace(machine, others=(Node("n2", turing(1)),), link=FAST)
    found = plan(mixed)
    assert split(found) == (1, 2)
    assert "their cards differ" in found.settings["pipeline_parallel_size"].reason
    odd = replace(LLAMA_70B_AWQ, heads=3, kv_heads=3)
    found = over(inventory(odd, gpus=H200), FAST)
    assert split(found) == (1, 2)
    assert "it has 3 attention heads" in found.settings["pipeline_parallel_size"].reason
