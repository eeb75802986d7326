"""Forecast how a four-bit GGUF file would serve a model that another engine cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from caovand.core.facts.checks import CheckResult
from caovand.core.facts.gguf import Gguf, GgufLayer
from caovand.core.facts.inventory import Gpu, Host, ModelCard
from caovand.engines.common.gguf.sizes import GgufLoad
from caovand.engines.common.gguf.sizing import WORKLOADS, LoadSizer, card_budgets
from caovand.engines.common.tensors import weights_of

TYPE = "Q4_K_M"
BITS: Mapping[str, float] = {"layers": 4.85, "output": 6.56, "embedding": 4.5}
"""Bits per weight in a file of that type, by the tensors' own types; experts count as layers."""
MXFP4, MXFP4_BITS = "MXFP4", 4.25
"""The type of a file whose experts were published in MXFP4, which every file keeps, and their bits
per weight."""
QUANTISED = re.compile(r"[-_](AWQ|GPTQ|FP8|NVFP4|MXFP4|bnb|W\dA\d|Int[48]|[48]bit)", re.I)
"""The suffix of a quantised checkpoint's name, after the model's."""
MIN_SPEEDUP = 2.0
"""The speed estimates of two engines err: only a gain this large is worth another download."""
READING_SPEED = 10.0
"""Tokens per second at reading speed: more gains people little."""
TINY_BYTES = 100 << 20
"""Bytes of a file below which a model exists only for trials: modelled speeds are meaningless
there.
"""
CONVERTIBLE = frozenset({
    "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "exaone", "falcon_h1", "gemma", "gemma2",
    "gemma3", "gemma3_text", "glm4", "glm4_moe", "gpt_oss", "granite", "granitemoe", "internlm2",
    "llama", "mamba2", "mistral", "mixtral", "nemotron", "olmo2", "phi3", "qwen2", "qwen2_moe",
    "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "qwen3_vl_moe_text",
    "qwen3_vl_text", "stablelm", "starcoder2",
})  # fmt: skip
"""Model types for which llama.cpp's converter makes GGUF files (convert_hf_to_gguf.py)."""
GROUP = "other engines"
"""The doctor's group for them."""


@dataclass(frozen=True)
class GgufFigures:
    """The forecast for a four-bit file of this `kind`: words after "a GGUF file", and modelled
    tokens/s."""

    kind: str
    text: str
    tokens_s: float


def figures(model: ModelCard, cards: tuple[Gpu, ...], host: Host) -> GgufFigures | None:
    """Forecast a file of this model on these cards; None if it would not run, or is unknown."""
    if model.gguf is not None or model.model_type not in CONVERTIBLE:
        return None
    file = convert_sizes(model)
    if file.size < TINY_BYTES:
        return None
    in_gguf = replace(model, gguf=file)
    chat = WORKLOADS["chat"]
    sizer = LoadSizer(in_gguf, host, cards, card_budgets(cards, None), chat)
    sized = sizer.find_longest(GgufLoad(0, filled=chat.filled))
    if not sized.fits or sized.seconds <= 0:  # a checkpoint without its layers needs no time
        return None
    layers, on_cards = len(file.layers) + 1, sized.placement.layers
    where = "in host memory" if not on_cards else f"{on_cards} of its {layers} layers on the GPU"
    if on_cards == layers:
        where = "all on the GPU"
    speed = 1 / sized.seconds
    pace = f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"
    gib = file.size / 2**30
    size = f"{gib:.0f}" if gib >= 10 else f"{gib:.1f}"
    kind = MXFP4 if model.quantization == "mxfp4" else TYPE
    text = (
        f"of type {kind}, about {size} GiB, {where}: {pace} tokens/s (modelled), and"
        f" {sized.load.context:,} tokens of context"
    )
    return GgufFigures(kind, text, speed)


def offer_gguf(
    title: str,
    model: ModelCard,
    cards: tuple[Gpu, ...],
    host: Host,
    tokens_s: float,
    how: Callable[[str, str], str],
) -> tuple[CheckResult, ...]:
    """Offer to serve the model as GGUF; `how` is a command that the model's name and the file's
    type complete.

    Empty if the model is fast enough already, or GGUF would hardly be faster, or would not run.
    """
    file = figures(model, cards, host) if tokens_s < READING_SPEED else None
    if file is None or file.tokens_s < MIN_SPEEDUP * tokens_s:
        return ()
    text = f"{title} would serve it from a GGUF file {file.text}"
    name = QUANTISED.split(model.path.rstrip("/").rpartition("/")[2].rpartition("--")[2])[0]
    return (CheckResult(GROUP, "WARN", text, how(name, file.kind)),)


def convert_sizes(model: ModelCard) -> Gguf:
    """The sizes of the file that the converter would make, by the checkpoint's."""
    kinds = model.layer_types or ("full_attention",)
    of_experts = MXFP4_BITS if model.quantization == "mxfp4" else BITS["layers"]
    experts = weights_of(model, "experts") * of_experts / 8 / len(kinds)
    dense = weights_of(model, "layers") * BITS["layers"] / 8 / len(kinds)
    layers = tuple(_layer(model, kind, int(dense + experts), int(experts)) for kind in kinds)
    embedding = int(weights_of(model, "embedding") * BITS["embedding"] / 8)
    output = int(weights_of(model, "head") * BITS["output"] / 8)
    whole = sum(layer.size for layer in layers) + embedding + output
    return Gguf(layers, embedding, output, 0, ((TYPE, whole),), ())


def _layer(model: ModelCard, kind: str, size: int, experts: int) -> GgufLayer:
    shape = model.linear if kind == "linear_attention" else model.mamba if kind == "mamba" else None
    if shape is not None:
        inner = shape.value_heads * shape.value_dim
        convolved = inner + 2 * shape.key_heads * shape.key_dim
        state = 4 * ((shape.conv_kernel - 1) * convolved + inner * shape.key_dim)
        return GgufLayer(size, experts, state_size=state)
    if model.latent:
        return GgufLayer(size, experts, keys=model.latent)
    if kind == "encoder_attention":
        return GgufLayer(size, experts)
    windowed = kind == "sliding_attention"
    width = model.kv_heads * model.head_dim
    if not windowed and model.global_head_dim:
        width = (model.global_kv_heads or model.kv_heads) * model.global_head_dim
    return GgufLayer(size, experts, width, width, model.sliding_window if windowed else 0)
