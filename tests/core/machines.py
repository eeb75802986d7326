"""Machines and models that tests plan for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from caovand.core.checkpoint.config_json import describe, invented_weights
from caovand.core.config.parser import parse
from caovand.core.facts.inventory import (
    EngineInfo,
    Gpu,
    Host,
    Inventory,
    LinearAttention,
    ModelCard,
    Node,
    Weights,
)
from caovand.core.plan import Plan
from caovand.engines.vllm.planning.planner import make_plan

GIB = 1 << 30
HOST = Host(ram_mib=65536, available_mib=60000, swap_mib=0, shm_mib=32768, cpus=16)
CUDA = EngineInfo("/engine/bin/python", "0.21.0", "2.11.0", "cuda", "0.6.8.post1")
FIXED = replace(CUDA, plugin="0.1.0", states="pass")
"""vLLM 0.21 with the plugin, which fixes its states."""
DEFAULT = replace(
    FIXED, version="0.33.0", torch="2.14.0", flashinfer="0.7.2.post1", gdn_interface="pass",
    attention="pass", lm_head="pass",
)  # fmt: skip
"""The default engine as it is installed: with the plugin, whose kernels suit it."""
CPU = EngineInfo("/engine/bin/python", "0.32.0+cpu", "2.13.0+cpu", "cpu")


def cards(count: int, name: str, capability: tuple[int, int], mib: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(i, name, capability, mib, mib - 300) for i in range(count))


def turing(count: int) -> tuple[Gpu, ...]:
    return cards(count, "NVIDIA GeForce RTX 2080 Ti", (7, 5), 22527)


KNOWN = {
    "RTX 2080 Ti 11 GB": ("NVIDIA GeForce RTX 2080 Ti", (7, 5), 11264),
    "T4": ("Tesla T4", (7, 5), 15360),
    "V100": ("Tesla V100-SXM2-32GB", (7, 0), 32768),
    "RTX 3060": ("NVIDIA GeForce RTX 3060", (8, 6), 12288),
    "RTX 3070": ("NVIDIA GeForce RTX 3070", (8, 6), 8192),
    "RTX 3090": ("NVIDIA GeForce RTX 3090", (8, 6), 24576),
    "RTX A6000": ("NVIDIA RTX A6000", (8, 6), 49140),
    "A10": ("NVIDIA A10", (8, 6), 23028),
    "A100 40 GB": ("NVIDIA A100-SXM4-40GB", (8, 0), 40960),
    "A100": ("NVIDIA A100-SXM4-80GB", (8, 0), 81920),
    "RTX 4060": ("NVIDIA GeForce RTX 4060", (8, 9), 8188),
    "RTX 4090": ("NVIDIA GeForce RTX 4090", (8, 9), 24564),
    "RTX 5090": ("NVIDIA GeForce RTX 5090", (12, 0), 32607),
    "H100": ("NVIDIA H100 80GB HBM3", (9, 0), 81559),
    "H800": ("NVIDIA H800", (9, 0), 81559),
    "H200": ("NVIDIA H200", (9, 0), 143771),
}


def named(card: str, count: int = 1) -> tuple[Gpu, ...]:
    """So many of a card that people have; `turing` are those of 22 GB."""
    return cards(count, *KNOWN[card])


def alike(nodes: int, machine: Inventory | None = None) -> Inventory:
    """This machine with others like it, so many nodes in all."""
    machine = machine or inventory()
    return replace(
        machine, others=tuple(Node(f"n{at}", machine.gpus) for at in range(2, nodes + 1))
    )


H200, A100 = named("H200"), named("A100")


def weights(**gib: float) -> tuple[Weights, ...]:
    """`layers=12.5` is GiB of sharded fp16; the names are the parts."""
    return tuple(
        Weights(part, "sharded", "F16", int(size * GIB))  # type: ignore[arg-type]
        for part, size in gib.items()
    )


QWEN_27B = ModelCard(
    path="/srv/models/Qwen3.6-27B",
    architecture="Qwen3_5ForConditionalGeneration",
    model_type="qwen3_5_text",
    layer_types=(("linear_attention",) * 3 + ("full_attention",)) * 16,
    max_model_len=262144,
    mtp_layers=1,
    hidden_size=5120,
    intermediate_size=17408,
    vocab_size=248320,
    heads=24,
    kv_heads=4,
    head_dim=256,
    rope_elements=4 * 262144 * 64,
    linear=LinearAttention(16, 48, 128, 128, 4, "float32"),
    dtype="bfloat16",
    weights=weights(layers=45.35, embedding=2.368, head=2.368, mtp=0.79),
)
"""Its measured shape has no state type in config.json, which makes the states fp16."""
QWEN_27B_MEASURED = replace(
    QWEN_27B, rope_elements=262144 * 64, linear=LinearAttention(16, 48, 128, 128, 4, "auto")
)
ABSENT = replace(QWEN_27B, architecture="", layer_types=(), folder=False)
"""A model that is not on the machine yet."""
QWEN_27B_AWQ = replace(
    QWEN_27B,
    path="/srv/models/Qwen3.6-27B-AWQ",
    quantization="awq",
    group_size=128,
    vision=True,
    weights=weights(layers=14.03, embedding=2.368, head=2.368, mtp=0.79, vision=0.84),
)
SMALL_HYBRID = replace(
    QWEN_27B_MEASURED,
    layer_types=(("linear_attention",) * 3 + ("full_attention",)) * 2,
    hidden_size=1024,
    intermediate_size=3584,
    vocab_size=151936,
    heads=8,
    kv_heads=2,
    linear=LinearAttention(4, 12, 128, 128, 4, "auto"),
    weights=weights(layers=0.30),
)
GPT_OSS = ModelCard(
    path="/srv/models/gpt-oss-20b",
    architecture="GptOssForCausalLM",
    model_type="gpt_oss",
    layer_types=("sliding_attention", "full_attention") * 12,
    max_model_len=131072,
    hidden_size=2880,
    intermediate_size=2880,
    vocab_size=201088,
    heads=64,
    kv_heads=8,
    head_dim=64,
    sliding_window=128,
    quantization="mxfp4",
    experts=32,
    weights=(
        Weights("experts", "sharded", "U8", 10_150_000_000),
        *weights(embedding=1.079, head=1.079, layers=1.18),
    ),
)
GEMMA_4 = ModelCard(
    path="/srv/models/gemma-4-26B-A4B",
    architecture="Gemma4ForConditionalGeneration",
    model_type="gemma4_text",
    layer_types=(("sliding_attention",) * 5 + ("full_attention",)) * 5,
    max_model_len=262144,
    hidden_size=2816,
    intermediate_size=2112,
    vocab_size=262144,
    heads=16,
    kv_heads=8,
    head_dim=256,
    global_kv_heads=2,
    global_head_dim=512,
    sliding_window=1024,
    experts=128,
    experts_per_token=8,
    expert_size=704,
    vision=True,
    images_both_ways=True,
    weights=weights(layers=3.07, experts=42.54, embedding=1.375, vision=1.02),
)
LLAMA_70B_AWQ = ModelCard(
    path="/srv/models/Llama-70B-AWQ",
    architecture="LlamaForCausalLM",
    model_type="llama",
    layer_types=("full_attention",) * 80,
    max_model_len=131072,
    hidden_size=8192,
    intermediate_size=28672,
    vocab_size=128256,
    heads=64,
    kv_heads=8,
    head_dim=128,
    dtype="float16",
    quantization="awq",
    group_size=128,
    weights=weights(layers=33.5, embedding=1.96, head=1.96),
)
TINY_HYBRID = replace(
    QWEN_27B,
    path="/srv/models/hybrid",
    layer_types=("linear_attention",) * 3 + ("full_attention",),
    max_model_len=131072,
    hidden_size=64,
    intermediate_size=128,
    vocab_size=512,
    heads=4,
    kv_heads=2,
    head_dim=64,
    rope_elements=131072 * 128,
    linear=LinearAttention(2, 4, 64, 64, 4, "float32"),
    weights=weights(layers=0.001, mtp=0.0002),
)


STARTS = Path(__file__).parent.parent / "samples" / "starts"


def made_up(name: str) -> ModelCard:
    """A model that was started on the H200, with the weights that vLLM made up for it."""
    config = json.loads((STARTS / "models" / f"{name}.json").read_text())
    described = describe(config)
    return replace(described, weights=invented_weights(config, described))


def in_four_bits(model: ModelCard) -> ModelCard:
    """The same model as an AWQ checkpoint: layers of four bits, a scale and zero a group."""
    smaller = tuple(
        replace(one, size=int(one.size * 4.5 / 16)) if one.part == "layers" else one
        for one in model.weights
    )
    return replace(model, quantization="awq", group_size=128, weights=smaller)


def inventory(
    model: ModelCard = QWEN_27B_AWQ,
    gpus: tuple[Gpu, ...] | None = None,
    engine: EngineInfo = CUDA,
    host: Host = HOST,
) -> Inventory:
    """Two 2080 Ti with the AWQ model, where nothing else is said."""
    return Inventory(turing(2) if gpus is None else gpus, host, engine, model)


def plan(
    machine: Inventory | None = None, *, how: dict[str, Any] | None = None, **sections: Any
) -> Plan:
    """The plan for a machine and configuration sections; `how` goes to make_plan."""
    machine = machine or inventory()
    document = {**sections, "model": {"path": machine.model.path, **sections.get("model", {})}}
    return make_plan(parse(document), machine, **(how or {}))
