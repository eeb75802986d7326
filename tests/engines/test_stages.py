"""What each pipeline stage holds, and the cache that the fullest one leaves to all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.checkpoint.config_json import describe, invented_weights
from caovand.core.checkpoint.tensors import sum_sizes
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard, Node, Weights
from caovand.core.facts.network import Network
from caovand.core.plan import Plan, Unplannable
from caovand.core.reporting.report import values
from caovand.core.units import GIB, MIB
from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.machine.link_time import NodeGroup
from caovand.engines.vllm.memory.candidate import Candidate, Kernels
from caovand.engines.vllm.memory.estimate import estimate, kv_bytes, room_for_context
from caovand.engines.vllm.memory.kv_cache import layout_for, pages
from caovand.engines.vllm.memory.settings import candidate_of_plan
from caovand.engines.vllm.memory.shards import (
    PARTITION,
    own_partition,
    stage_model,
    stages_of,
    weights_bytes,
)
from caovand.engines.vllm.memory.steps import (
    COLLECTIVE_MIB,
    DRAFTER_MIB,
    ROUNDED_MIB,
    VISION_MIB,
    overheads,
)
from caovand.engines.vllm.planning.decisions import forecast
from caovand.engines.vllm.sizing.pace import CandidatePace
from caovand.engines.vllm.sizing.space import WORKLOADS
from tests.boxes.machines import box_with
from tests.boxes.models import model
from tests.core.machines import (
    CPU,
    CUDA,
    GEMMA_4,
    GPT_OSS,
    LLAMA_70B_AWQ,
    QWEN_27B,
    QWEN_27B_AWQ,
    SMALL_HYBRID,
    TINY_HYBRID,
    inventory,
    named,
    plan,
    turing,
    weights,
)

LATER = replace(CUDA, version="0.32.0")
STAGES: dict[str, Any] = {"engine": {"extra_args": ["--pipeline-parallel-size", "2"]}}
UNEQUAL = (*named("RTX 3090"), replace(named("RTX 2080 Ti 11 GB")[0], index=1))


def gib(model: ModelCard, candidate: Candidate) -> list[float]:
    """Weights of each stage."""
    return [
        weights_bytes(one.model, one.candidate) / GIB
        for one in stages_of(model, candidate, turing(2))
    ]


# -- weights ---------------------------------------------------------------------------------


def test_the_27b_in_two_stages_by_hand() -> None:
    """14.03 GiB of layers in halves; embedding (2.368) and vision tower (0.84) on both, as vLLM's
    class of Qwen3.5 has them; the head (2.368) on the last. Tables of positions are 0.125."""
    candidate = Candidate(16384, 1, 8192, 0.9, vision=True, stages=(32, 32))
    both = 7.015 + 2.368 + 0.84 + 0.125
    assert gib(QWEN_27B_AWQ, candidate) == pytest.approx([both, both + 2.368], abs=0.001)
    # 40 and 24 layers; MTP (0.79) is on the last, with an embedding of its own and its buffer.
    candidate = replace(candidate, stages=(40, 24), mtp=3)
    buffer = 8192 * 5120 * 2 / GIB
    first, last = 14.03 * 40 / 64, 14.03 * 24 / 64
    rest = 2.368 + 0.84 + 0.125
    assert gib(QWEN_27B_AWQ, candidate) == pytest.approx(
        [first + rest, last + rest + 2.368 + 0.79 + 2.368 + buffer], abs=0.001
    )


def test_classes_with_an_embedding_on_the_first_stage_only() -> None:
    """Llama's: 33.5 GiB of layers in 27, 27 and 26 of 80, 1.96 each of embedding and head."""
    candidate = Candidate(16384, 1, 8192, 0.9, stages=(27, 27, 26))
    each = 33.5 / 80
    expected = [27 * each + 1.96, 27 * each, 26 * each + 1.96]
    assert gib(LLAMA_70B_AWQ, candidate) == pytest.approx(expected, abs=0.001)
    tied = replace(LLAMA_70B_AWQ, weights=weights(layers=33.5, embedding=1.96))
    assert gib(tied, candidate) == pytest.approx(expected, abs=0.001)
    # gpt-oss has both on every stage.
    three = gib(GPT_OSS, replace(candidate, stages=(8, 8, 8)))
    assert max(three) - min(three) < 0.001
    assert three[0] > 2 * 1.079


def test_layers_weigh_what_their_tensors_weigh() -> None:
    names = {
        "model.embed_tokens.weight": 100, "lm_head.weight": 100, "model.norm.weight": 1,
        "model.layers.0.mlp.up_proj.weight": 50, "model.layers.1.mlp.up_proj.weight": 10,
        "model.layers.1.mlp.experts.0.up_proj.weight": 30,
        "model.layers.2.mlp.up_proj.weight": 10, "model.layers.3.fc.weight": 7,
    }  # fmt: skip
    found = sum_sizes(((name, "BF16", size) for name, size in names.items()), 3)
    assert {one.part: one.layers for one in found if one.layers} == {
        "layers": (50, 10, 10), "experts": (0, 30, 0),
    }  # fmt: skip
    model = replace(LLAMA_70B_AWQ, layer_types=("full_attention",) * 3, weights=found, mtp_layers=1)
    first, second = (stage_model(model, *one, drafting=True) for one in ((0, 1), (1, 3)))
    assert (first.size("layers"), first.size("experts"), first.size("mtp")) == (50, 0, 0)
    assert (second.size("layers"), second.size("experts"), second.size("mtp")) == (21, 30, 7)
    assert (first.size("embedding"), second.size("embedding")) == (100, 100)  # the drafter's own
    assert (first.size("head"), second.size("head")) == (0, 100)


def test_invented_layers_differ_by_their_kind() -> None:
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "hidden_size": 512, "intermediate_size": 4096, "moe_intermediate_size": 64,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "first_k_dense_replace": 3, "num_hidden_layers": 8, "num_attention_heads": 8,
        "vocab_size": 1000, "max_position_embeddings": 4096,
    }  # fmt: skip
    card = describe(config)
    found = {(one.part, one.sharding): one for one in invented_weights(config, card)}
    assert found["experts", "sharded"].layers == (0,) * 3 + (3 * 512 * 64 * 8,) * 5
    dense = found["layers", "sharded"].layers
    assert len(set(dense[:3])) == len(set(dense[3:])) == 1
    assert dense[0] - dense[3] == 3 * 512 * (4096 - 64)
    for one in found.values():
        assert not one.layers or one.size == 2 * sum(one.layers)


MODELS = (QWEN_27B, QWEN_27B_AWQ, SMALL_HYBRID, GPT_OSS, GEMMA_4, LLAMA_70B_AWQ)


@st.composite
def dealings(draw: st.DrawFn) -> tuple[ModelCard, tuple[int, ...]]:
    model = draw(st.sampled_from(MODELS))
    layers = len(model.layer_types)
    stages = draw(st.integers(2, min(5, layers)))
    cuts = sorted(
        draw(st.sets(st.integers(1, layers - 1), min_size=stages - 1, max_size=stages - 1))
    )
    return model, tuple(b - a for a, b in zip((0, *cuts), (*cuts, layers), strict=True))


@given(dealt=dealings(), mtp=st.integers(0, 4), each=st.lists(st.integers(1, 9), min_size=64))
def test_the_stages_together_hold_every_layer_once(
    dealt: tuple[ModelCard, tuple[int, ...]], mtp: int, each: list[int]
) -> None:
    model, stages = dealt
    sizes = tuple((each * 2)[: len(model.layer_types)])
    uneven = tuple(
        replace(one, layers=sizes) if one.part in ("layers", "experts") else one
        for one in model.weights
    )
    model = replace(model, weights=uneven)
    candidate = Candidate(4096, 1, 512, 0.9, mtp=mtp, stages=stages)
    held = [one.model for one in stages_of(model, candidate, turing(len(stages)))]
    for part in ("layers", "experts", "mtp"):
        together = sum(one.size(part) for one in held)  # type: ignore[arg-type]
        assert together == pytest.approx(model.size(part), abs=len(stages))  # type: ignore[arg-type]
    assert sum((one.layer_types for one in held), ()) == model.layer_types
    assert [one.mtp_layers for one in held[:-1]] == [0] * (len(stages) - 1)
    for one in held:
        assert one.size("embedding") <= 2 * model.size("embedding")
    assert held[0].size("embedding") == model.size("embedding")
    assert held[-1].size("head") == model.size("head")


def test_what_only_one_stage_takes_in_a_step() -> None:
    """Images and the copy of the embedding on the first, the sampler on the last; those behind the
    first receive hidden states and residual; every pair of stages has NCCL's buffers."""
    candidate = Candidate(4096, 256, 2048, 0.9, vision=True, mtp=2, stages=(24, 20, 20), cold=True)

    def parts(candidate: Candidate) -> list[dict[str, float]]:
        found = stages_of(QWEN_27B_AWQ, candidate, turing(3))
        return [{name: size / MIB for name, size in overheads(*one[:2])} for one in found]

    first, middle, last = parts(candidate)
    received = 2 * 2048 * 5120 * 2 / MIB
    assert first["activations"] > middle["activations"] + VISION_MIB - received
    assert last["activations"] > middle["activations"] + 1000  # of 256 logits, drafted ones too
    alone = {
        name: size / MIB for name, size in overheads(QWEN_27B_AWQ, replace(candidate, stages=()))
    }
    rounded = (64 - 20) * ROUNDED_MIB
    assert middle["context"] == pytest.approx(alone["context"] - rounded + COLLECTIVE_MIB)
    assert first["graphs"] > middle["graphs"]
    assert last["graphs"] > middle["graphs"] + DRAFTER_MIB
    # Without images, without drafts and in eager mode the first and the middle one differ by that.
    bare = replace(candidate, vision=False, mtp=0, eager=True)
    first, middle, last = parts(bare)
    assert middle["activations"] - first["activations"] == pytest.approx(received)
    compiled = parts(replace(bare, eager=False))
    assert compiled[0]["activations"] > compiled[1]["activations"] + 1000  # 248,320 rows copied


def test_steps_under_way_hold_more_of_a_window() -> None:
    """One a stage, and one that is scheduled: VllmConfig.max_in_flight_tokens, which 0.21 lacks."""

    def held(stages: tuple[int, ...], version: tuple[int, ...]) -> int:
        candidate = Candidate(131072, 8, 2048, 0.9, stages=stages, kernels=Kernels(version=version))
        return layout_for(GPT_OSS, candidate).batch_tokens // 2048

    assert [held(stages, (0, 33, 0)) for stages in ((), (12, 12))] == [2, 3]
    assert [held(stages, (0, 21, 0)) for stages in ((), (12, 12))] == [1, 1]


# -- the cache -------------------------------------------------------------------------------


STARTED = {"kv_bytes": 64 << 20, "alignment": 128, "eager": True,
           "kernels": Kernels(version=(0, 32, 0))}  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "stages", "aligned", "tokens"),
    [
        ((("linear_attention",) * 3 + ("full_attention",)) * 3, (4, 8), True, 37_449),
        (("full_attention",) * 10, (7, 3), False, 37_376),
    ],
)
def test_the_cache_is_as_large_as_the_cpu_build_reported(
    kinds: tuple[str, ...], stages: tuple[int, ...], aligned: bool, tokens: int
) -> None:
    """vLLM 0.32.0, two stages of 64 MiB, a context of 2,048: "CPU KV cache size"."""
    model = replace(TINY_HYBRID, layer_types=kinds)
    if not aligned:
        model = replace(model, linear=None, head_dim=32, mtp_layers=0)
    candidate = Candidate(2048, 256, 2048, 0.9, aligned_states=aligned, stages=stages, **STARTED)  # type: ignore[arg-type]
    assert estimate(model, candidate, ()).kv_tokens == tokens


@pytest.mark.parametrize(
    ("model", "mtp", "stages", "width"),
    [
        (QWEN_27B, 3, (32, 32), (8, 9)),  # the drafting layer is in the only group of attention
        (QWEN_27B, 0, (40, 24), (10, 6)),
        (GPT_OSS, 0, (13, 11), (7, 6)),
        (GEMMA_4, 0, (3, 27), (1, 5)),
        (LLAMA_70B_AWQ, 0, (27, 27, 26), (27, 27, 26)),
    ],
)
def test_a_block_is_as_wide_as_the_widest_group_of_a_stage(
    model: ModelCard, mtp: int, stages: tuple[int, ...], width: tuple[int, ...]
) -> None:
    """As _project_kv_cache_groups_to_worker of vLLM 0.32 leaves them: compared for 3,000 models."""
    ends = [sum(stages[: at + 1]) for at in range(len(stages))]
    found = [pages(model, mtp, end - held, end) for end, held in zip(ends, stages, strict=True)]
    assert tuple(found) == width


@given(dealt=dealings(), mtp=st.integers(0, 2))
def test_the_groups_of_all_stages_make_up_those_of_the_model(
    dealt: tuple[ModelCard, tuple[int, ...]], mtp: int
) -> None:
    model, stages = dealt
    ends = [sum(stages[: at + 1]) for at in range(len(stages))]
    found = [pages(model, mtp, end - held, end) for end, held in zip(ends, stages, strict=True)]
    whole = pages(model, mtp, 0, len(model.layer_types))
    assert max(found) <= whole <= sum(found)
    layout = layout_for(model, Candidate(4096, 1, 512, 0.9, mtp=mtp))
    assert layout.block_bytes % whole == 0


def cards_of(memory: list[int]) -> tuple[Gpu, ...]:
    return tuple(replace(turing(1)[0], index=at, total_mib=mib, free_mib=mib)
                 for at, mib in enumerate(memory))  # fmt: skip


@given(
    dealt=dealings(),
    memory=st.lists(st.integers(12_000, 90_000), min_size=5, max_size=5),
    more=st.integers(1, 50_000),
)
def test_the_stage_with_the_least_room_decides_the_cache_of_all(
    dealt: tuple[ModelCard, tuple[int, ...]], memory: list[int], more: int
) -> None:
    model, stages = dealt
    candidate = Candidate(4096, 1, 512, 0.9, stages=stages)
    memory = memory[: len(stages)]
    found = kv_bytes(model, candidate, cards_of(memory))
    grown = [
        kv_bytes(model, candidate, cards_of([*memory[:at], memory[at] + more, *memory[at + 1 :]]))
        for at in range(len(stages))
    ]
    assert all(one >= found for one in grown)
    assert sum(one > found for one in grown) <= 1  # only the card that was the fullest
    whole = kv_bytes(model, candidate, cards_of([mib + more for mib in memory]))
    assert whole > found


# -- plans -----------------------------------------------------------------------------------


def test_two_equal_cards_are_dealt_by_vllms_own_rule() -> None:
    machine = inventory()
    found = plan(machine, **STAGES)
    assert (found.value("tensor_parallel_size"), found.value("pipeline_parallel_size")) == (1, 2)
    assert PARTITION not in found.env
    memory = forecast(found, machine)
    assert memory.fits
    assert [rank.layers for rank in memory.ranks] == [(0, 31), (32, 63)]
    assert [rank.cards for rank in memory.ranks] == [(0,), (1,)]
    assert [rank.fullest for rank in memory.ranks] == [False, True]
    # Both stages have as many blocks, of eight pages each.
    first, last = (dict(rank.parts) for rank in memory.ranks)
    assert first["kv"] == pytest.approx(last["kv"])
    assert first["free"] > last["free"]
    assert memory.kv_mib == last["kv"]
    for rank in memory.ranks:
        assert sum(size for _, size in rank.parts) == pytest.approx(22527, abs=1)


def blocks(machine: Inventory, candidate: Candidate, stages: tuple[int, ...]) -> float:
    """Blocks of the cache that a context of ours may fill with this dealing."""
    candidate = candidate.but(stages=stages)
    whole = room_for_context(machine.model, candidate, machine.gpus)
    return whole / layout_for(machine.model, candidate).block_bytes


@pytest.mark.parametrize("engine", [CUDA, LATER])
def test_a_3090_beside_an_11_gib_2080_ti(engine: Any) -> None:
    """The larger card has the more layers, and one more or fewer would leave less cache."""
    machine = inventory(gpus=UNEQUAL, engine=engine)
    found = plan(machine, engine={**STAGES["engine"], "gpus": [0, 1]})
    setting = found.env[PARTITION]
    first, last = map(int, setting.value.split(","))
    assert first + last == 64
    candidate = candidate_of_plan(found, machine).but(cold=True)  # the first start has the least
    assert candidate.stages == (first, last)
    chosen = blocks(machine, candidate, (first, last))
    assert chosen > 0
    assert blocks(machine, candidate, (first + 1, last - 1)) <= chosen
    assert blocks(machine, candidate, (first - 1, last + 1)) <= chosen
    assert blocks(machine, candidate, (32, 32)) < 0
    assert forecast(found, machine).fits
    assert f"{first} on NVIDIA GeForce RTX 3090 of 24 GiB" in setting.reason
    assert setting.reason.endswith("by vLLM's own rule (32,32) none")
    # The oldest comes first if no order is configured.
    turned = plan(machine, **STAGES)
    assert turned.env["CUDA_VISIBLE_DEVICES"].value == "1,0"
    assert int(turned.env[PARTITION].value.split(",")[0]) < 32
    assert [rank.cards for rank in forecast(turned, machine).ranks] == [(1,), (0,)]


def test_where_memory_is_enough_the_faster_card_has_the_more_layers() -> None:
    """A 3090 reads at 936 GB/s, a 2080 Ti at 616: of 80 layers it has about 936 / 1552."""
    model = replace(LLAMA_70B_AWQ, max_model_len=4096, weights=weights(layers=6, head=0.1))
    machine = inventory(model, (*named("RTX 3090"), replace(turing(1)[0], index=1)))
    setting = plan(machine, **STAGES).env[PARTITION]
    assert setting.value in ("32,48", "31,49")
    assert "the slowest stage reads its weights in" in setting.reason
    assert "with vLLM's own rule (40,40) in" in setting.reason


def test_a_typed_dealing_is_kept_and_forecast() -> None:
    machine = inventory(gpus=UNEQUAL)
    typed = {"engine": {**STAGES["engine"], "env": {PARTITION: "56,8"}}}
    found = plan(machine, **typed)
    assert found.env[PARTITION].origin == "user"
    assert [rank.layers for rank in forecast(found, machine).ranks] == [(0, 55), (56, 63)]


def test_a_token_takes_as_long_over_stages_as_on_one_card() -> None:
    """They work one after the other; a slower second one slows its part."""
    candidate = Candidate(16384, 1, 8192, 0.9, eager=True)
    one = CandidatePace(QWEN_27B_AWQ, candidate, turing(1), WORKLOADS["chat"]).answering(candidate)
    both = replace(candidate, stages=(32, 32))
    even = CandidatePace(QWEN_27B_AWQ, both, turing(2), WORKLOADS["chat"]).answering(both)
    assert even == pytest.approx(one, rel=0.01)
    assert even < one
    mixed = CandidatePace(QWEN_27B_AWQ, both, UNEQUAL, WORKLOADS["chat"]).answering(both)
    much = replace(candidate, stages=(56, 8))
    more = CandidatePace(QWEN_27B_AWQ, much, UNEQUAL, WORKLOADS["chat"]).answering(much)
    assert even < mixed < more


GIGABIT, FAST = Network(117e6, 200e-6), Network(12.5e9, 10e-6)


def waited_s(
    candidate: Candidate, nodes: NodeGroup, cards: int, pcie: tuple[int, int] | None = None
) -> float:
    """How much longer a token takes than if every exchange were free, of one answer, over NVLink
    or these lanes."""
    gpus = tuple(replace(gpu, nvlink=tuple(range(cards))) for gpu in turing(cards))
    gpus = tuple(replace(gpu, nvlink=(), pcie=pcie) for gpu in gpus) if pcie else gpus
    pace = CandidatePace(LLAMA_70B_AWQ, candidate, gpus, WORKLOADS["chat"], nodes)
    took_s = pace.answering(candidate) ** -1
    pace._exchange_s = pace._exchanged_s = 0.0
    return took_s - pace.answering(candidate) ** -1


def test_cards_of_different_nodes_exchange_data_over_their_link_by_hand() -> None:
    """Llama's 80 layers have 160 sums of 16 KiB; NCCL's 40 us each come on top of the link's.
    NVLink takes 7 us and carries 35 GB/s here, and joins the cards of one node only."""
    candidate = Candidate(16384, 1, 8192, 0.9, tensor_parallel=2, eager=True)
    linked = 160 * (7e-6 + 16384 / 35e9)
    assert waited_s(candidate, NodeGroup(), 2) == pytest.approx(linked)
    sums = 160 * (40e-6 + 200e-6 + 16384 / 117e6)
    assert waited_s(candidate, NodeGroup(2), 2) == pytest.approx(sums)
    assert waited_s(candidate, NodeGroup(2, GIGABIT), 2) == pytest.approx(sums), "what is assumed"
    for lanes, rate in (((3, 8), 6.304e9), ((4, 16), 25.216e9)):
        sums = 160 * (34e-6 + 16384 / rate)
        assert waited_s(candidate, NodeGroup(), 2, lanes) == pytest.approx(sums), lanes
    four = replace(candidate, tensor_parallel=4)
    sums = linked + 160 * (40e-6 + 10e-6 + 16384 / 12.5e9)
    assert waited_s(four, NodeGroup(2, FAST), 4) == pytest.approx(sums)
    # Of two stages on two cards each, hidden states and residual cross once, half a round trip.
    staged = replace(candidate, stages=(40, 40))
    hop = 100e-6 + 2 * 16384 / 117e6
    assert waited_s(staged, NodeGroup(2, GIGABIT), 4) == pytest.approx(linked + hop)
    assert waited_s(staged, NodeGroup(), 4) == pytest.approx(linked + 34e-6)
    # Of four stages on two nodes one hop of three crosses.
    fine = replace(candidate, tensor_parallel=1, stages=(20, 20, 20, 20))
    assert waited_s(fine, NodeGroup(2, GIGABIT), 4) == pytest.approx(2 * 34e-6 + hop)


def test_the_speed_of_a_plan_and_its_choices_count_with_the_link() -> None:
    machine = replace(inventory(gpus=turing(1)), others=(Node("n2", turing(1)),))
    typed = {"engine": {"extra_args": ["--tensor-parallel-size", "2"]}}
    speeds = []
    for link in (None, GIGABIT, FAST):
        over = replace(machine, link=link)
        speeds.append(ENGINE.planning.speed(plan(over, **typed), over))
    assert speeds[0] == pytest.approx(speeds[1], rel=0.01)
    assert speeds[2] > 1.5 * speeds[0]


def test_each_stage_may_be_split_over_cards() -> None:
    machine = inventory(gpus=turing(4))
    found = plan(machine, **STAGES)
    memory = forecast(found, machine)
    assert found.value("tensor_parallel_size") == 2
    assert [rank.cards for rank in memory.ranks] == [(0, 1), (2, 3)]
    assert memory.weights_mib / 1024 == pytest.approx((14.03 / 2 + 4.736 + 0.84) / 2 + 0.125, 0.01)


def test_the_document_of_a_plan_has_every_rank() -> None:
    machine = replace(inventory(gpus=turing(1)), others=(Node("n2", turing(1)),))
    ranks = values(forecast(plan(machine), machine))["ranks"]
    assert [(one["stage"], one["node"], one["gpus"], one["layers"]) for one in ranks] == [
        (0, "head", [0], [0, 31]),
        (1, "n2", [0], [32, 63]),
    ]
    assert [one["fullest"] for one in ranks] == [False, True]
    assert ranks[1]["weights_gib"] > ranks[0]["weights_gib"] > 7
    assert ranks[0]["kv_gib"] == ranks[1]["kv_gib"] > 1
    alone = inventory()
    assert values(forecast(plan(alone), alone))["ranks"] == []


# -- refusals --------------------------------------------------------------------------------


def refused(machine: Inventory, **sections: Any) -> str:
    """What the forecast says that cannot run."""
    found = forecast(plan(machine, **sections), machine)
    assert found.fits is False
    return "; ".join(map(str, found.conflicts))


def test_vllm_before_0_32_does_not_draft_over_stages() -> None:
    found = plan(inventory(), **STAGES)
    assert found.mtp == 0
    reason = found.settings["speculative_config"].reason
    assert reason.startswith(
        "vLLM 0.21.0 does not support MTP with pipeline stages; 0.32 is the first"
    )
    assert plan(inventory(engine=LATER), policy={"mtp": 2}, **STAGES).mtp == 2
    nobody = replace(QWEN_27B_AWQ, model_type="qwen3_next")
    found = plan(inventory(nobody, engine=LATER), policy={"mtp": 2}, **STAGES)
    assert "MTP heads of Qwen3.5 and DeepSeek V3" in (found.settings["speculative_config"].reason)
    with pytest.raises(
        Unplannable, match=r'does not support MTP with pipeline stages.*set mtp = "auto"'
    ):
        plan(inventory(), policy={"mtp": 2, "pinned": ["mtp"]}, **STAGES)


def test_typed_drafts_over_stages_are_a_conflict() -> None:
    words = [*STAGES["engine"]["extra_args"], "-sc"]
    words.append('{"method":"mtp","num_speculative_tokens":3}')
    said = refused(inventory(), engine={"extra_args": words})
    assert said.startswith(
        "cannot draft with MTP: vLLM 0.21.0 does not support MTP with pipeline stages"
    )
    assert said.endswith("remove --speculative-config")
    later = inventory(engine=LATER)
    assert forecast(plan(later, engine={"extra_args": words}), later).fits


@pytest.mark.parametrize(
    ("machine", "env", "text"),
    [
        (
            inventory(replace(QWEN_27B_AWQ, architecture="Zamba2ForCausalLM")), {},
            "vLLM 0.21.0 does not support stages for Zamba2ForCausalLM; use --tensor-parallel-size",
        ),
        (inventory(), {PARTITION: "40,20"}, f"{PARTITION} is 40,20, but the model has 64 layers"),
        (inventory(), {PARTITION: "62,2,0"}, "use 2 numbers whose sum is 64"),
        (inventory(), {PARTITION: "2,62"}, "with 2,62 layers, one stage has no attention layer"),
        (inventory(replace(LLAMA_70B_AWQ, layer_types=("full_attention",))), {}, "it has 1 layers"),
        (inventory(TINY_HYBRID, (), CPU), {}, "layers, one stage has no attention layer"),
    ],
)  # fmt: skip
def test_what_vllm_refuses_in_stages(machine: Inventory, env: dict[str, str], text: str) -> None:
    said = refused(machine, engine={**STAGES["engine"], "env": env})
    assert said.startswith("cannot serve the model in 2 pipeline stages: ")
    assert text in said


def test_over_nodes_it_is_refused_before_the_start() -> None:
    def over(model: ModelCard) -> Plan:
        return plan(replace(inventory(model, turing(1)), others=(Node("n2", turing(1)),)))

    odd = replace(QWEN_27B_AWQ, architecture="Zamba2ForCausalLM", heads=3, kv_heads=3, linear=None)
    with pytest.raises(Unplannable, match="cannot plan for 2 nodes: cannot serve the model in 2"):
        over(odd)
    # One that can be split is, over the link.
    even = over(replace(odd, heads=24, kv_heads=4))
    assert (even.value("tensor_parallel_size"), even.value("pipeline_parallel_size")) == (2, None)
    reason = even.settings["tensor_parallel_size"].reason
    assert (
        "tensor parallel over 2 nodes, [cluster]: vLLM 0.21.0 does not support stages for Zamba2"
        in reason
    )


def test_the_least_layers_are_dealt_by_vllms_rule_where_the_parts_are_alike() -> None:
    assert own_partition(4, 4) == (1, 1, 1, 1)
    even = Weights("layers", "sharded", "F16", 8 * GIB)
    model = replace(LLAMA_70B_AWQ, layer_types=("full_attention",) * 4, weights=(even,))
    candidate = Candidate(4096, 1, 512, 0.9, stages=(1, 1, 1, 1))
    assert gib(model, candidate) == [2.0] * 4


def test_uneven_cards_that_others_use_serve_with_layers_dealt_by_their_room() -> None:
    """By vLLM's own rule the smaller card has no room: that is not a reason to wait for it."""
    machine = box_with("3090-and-3060", model("gpt-oss-20b"))
    first = replace(machine.gpus[0], free_mib=int(machine.gpus[0].free_mib * 0.55))
    found = plan(replace(machine, gpus=(first, *machine.gpus[1:])))
    assert found.env["VLLM_PP_LAYER_PARTITION"].value == "18,6"
    assert found.value("max_model_len") >= 32768
