"""Models in GGUF files, and machines that they are planned for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from caovand.core.config.parser import parse
from caovand.core.facts.gguf import Gguf, GgufLayer
from caovand.core.facts.inventory import EngineInfo, Gpu, Host, Inventory, ModelCard
from caovand.core.plan import Plan
from caovand.engines.llamacpp.engine import ENGINE

MIB, GIB = 1 << 20, 1 << 30
HOST = Host(ram_mib=65536, available_mib=60000, swap_mib=0, shm_mib=32768, cpus=8)
CPU = EngineInfo(
    "/engine/bin/python", "11434.0.0", "", "cpu", executable="/engine/bin/llama-server"
)
CUDA = replace(CPU, build="cuda")


def model(
    layers: int, layer_mib: int, *, context: int = 32768, keys: int = 1024, **more: Any
) -> ModelCard:
    """A model of equal layers; `experts_mib` of each are routed experts."""
    experts = more.pop("experts_mib", 0)
    mtp = more.pop("mtp", 0)
    each = GgufLayer(layer_mib * MIB, experts * MIB, keys, keys)
    every = (each,) * layers + (replace(each, mtp=True),) * mtp
    gguf = Gguf(every, 300 * MIB, 400 * MIB, 0, (("Q4_K", layers * layer_mib * MIB),), ())
    values: dict[str, Any] = {
        "hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 151936, "heads": 32,
        "kv_heads": 8, "head_dim": 128, "mtp_layers": mtp, **more,
    }  # fmt: skip
    return ModelCard(
        "/srv/models/model-Q4_K_M.gguf", "qwen3", "qwen3", ("full_attention",) * layers, context,
        quantization="Q4_K", gguf=gguf, **values,
    )  # fmt: skip


QWEN_8B = model(36, 120)
QWEN_27B_MTP = model(64, 240, context=262144, mtp=1)
MOE_30B = model(
    48, 360, experts_mib=330, context=262144, keys=512, experts=128, experts_per_token=8,
    expert_size=768, hidden_size=2048,
)  # fmt: skip
LLAMA_70B = model(80, 500, context=131072, heads=64, hidden_size=8192, intermediate_size=28672)


def card(index: int, mib: int, name: str = "NVIDIA GeForce RTX 2080 Ti") -> Gpu:
    return Gpu(index, name, (7, 5), mib, mib - 300)


def machine(
    model: ModelCard = QWEN_8B,
    *mib: int,
    host: Host = HOST,
    engine: EngineInfo | None = None,
) -> Inventory:
    gpus = tuple(card(index, size) for index, size in enumerate(mib))
    return Inventory(gpus, host, engine or (CUDA if mib else CPU), model)


def plan(inventory: Inventory, **sections: Any) -> Plan:
    extra = {"environ": sections.pop("environ", {}), "mode": sections.pop("mode", None)}
    sections.setdefault("model", {}).setdefault("path", inventory.model.path)
    config = parse(sections)
    return ENGINE.planning.make(config, inventory, **extra)


SAMPLES = Path(__file__).parents[2] / "samples" / "llamacpp"
