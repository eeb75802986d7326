"""Read config.json as Transformers does; multimodal models nest the text model's configuration."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from caovand.core.checkpoint import mtp
from caovand.core.checkpoint.context_limit import LENGTHS, context_limit
from caovand.core.checkpoint.quantisation import (
    MAX_LAYERS,
    Quantisation,
    keeps_fp8_cache,
    read_gptq,
    read_packed,
    read_quantisation,
)
from caovand.core.checkpoint.rope import table_elements
from caovand.core.checkpoint.shapes import weights_by_shape
from caovand.core.checkpoint.text_config import text_config
from caovand.core.checkpoint.values import (
    BadConfig,
    first_count,
    table_value,
    text_value,
)
from caovand.core.checkpoint.vision import has_tower, vision_tower
from caovand.core.facts.inventory import LatentAttention, LinearAttention, ModelCard, Weights
from caovand.core.problem import Problem

LAYERS = ("decoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("decoder_attention_heads", "num_attention_heads", "n_head", "n_heads")
LAYER_NAMES = {
    "attention": "full_attention", "full_attention": "full_attention", "*": "full_attention",
    "sliding_attention": "sliding_attention", "chunked_attention": "sliding_attention",
    "linear_attention": "linear_attention", "mamba": "mamba", "mamba2": "mamba", "M": "mamba",
    "hybrid": "full_attention",
    "mlp": "mlp", "-": "mlp", "moe": "mlp", "E": "mlp",
}  # fmt: skip
"""Layers that are only an MLP: they have no cache, but tensor names number them too."""
WINDOWED = frozenset({"mistral", "mixtral", "phi3", "phimoe", "starcoder2"})
"""Model types whose window, if set, applies to every layer."""
INDEX_BLOCK, SCALE_BYTES = 128, 4
"""Sparse attention caches its keys in fp8, with one scale per block of this many elements."""


def describe(
    config: Mapping[str, Any],
    tokenizer: Mapping[str, Any] | None = None,
    path: str = "",
    processor: Mapping[str, Any] | None = None,
) -> ModelCard:
    """Describe the model from its configuration, and preprocessor_config.json, without weights."""
    architecture, text = _architecture(config), text_config(config)
    heads = first_count(text, *HEADS)
    hidden = first_count(text, *HIDDEN)
    head = first_count(text, "head_dim") or (hidden // heads if heads else 0)
    global_head = first_count(text, "global_head_dim")
    window = first_count(text, "sliding_window")
    latent, rope = first_count(text, "kv_lora_rank"), first_count(text, "qk_rope_head_dim")
    index = first_count(text, "index_head_dim")
    quantised, table = _quantisation(config, text), _quantisation_table(config, text)
    experts = first_count(text, "num_experts", "num_local_experts", "n_routed_experts")
    layers = layer_types(text)
    if not layers and not hidden:
        raise BadConfig(
            'it lacks the dimensions of the model, such as "num_hidden_layers" and "hidden_size"'
        )
    return ModelCard(
        path=path,
        architecture=architecture,
        model_type=text_value(text, "model_type") or text_value(config, "model_type"),
        layer_types=layers,
        max_model_len=context_limit(config, text, tokenizer or {}),
        limit_known=any(first_count(text, name) for name in LENGTHS),
        mtp_layers=_bounded(mtp.mtp_layers(config, text, architecture), "MTP layers"),
        hidden_size=hidden,
        intermediate_size=first_count(text, "intermediate_size", "n_inner"),
        vocab_size=first_count(text, "vocab_size"),
        heads=heads or 1,
        kv_heads=first_count(text, "num_key_value_heads", "multi_query_group_num") or heads or 1,
        head_dim=head,
        global_kv_heads=first_count(text, "num_global_key_value_heads")
        if text.get("attention_k_eq_v")
        else 0,
        global_head_dim=global_head,
        sliding_window=0 if text.get("use_sliding_window") is False else window,
        kv_shared=_count_kv_shared(text, layers),
        latent=latent + rope if latent else 0,
        mla=_latent_attention(text) if latent else None,
        indexer=index + index // INDEX_BLOCK * SCALE_BYTES if latent else 0,
        rope_elements=table_elements(text, head, global_head),
        linear=_linear(text),
        mamba=_mamba(text, hidden),
        dtype=_compute_type(_dtype(text) or _dtype(config)),
        quantization=quantised.method,
        group_size=quantised.group_size,
        block_size=quantised.block_size,
        spared=quantised.spared,
        gptq=read_gptq(table),
        packed=read_packed(table),
        fp8_cache=keeps_fp8_cache(table),
        experts=experts,
        experts_per_token=first_count(
            text, "num_experts_per_tok", "experts_per_token", "top_k_experts"
        ),
        expert_size=first_count(text, "moe_intermediate_size"),
        shared_size=_shared_experts(text),
        dense_size=_dense_size(text) if experts else 0,
        dense_layers=_dense_layers(text, len(layers)) if experts else 0,
        vision=has_tower(config),
        tower=vision_tower(config, processor),
        images_both_ways=text.get("use_bidirectional_attention") == "vision",
        encoder_tokens=first_count(text, "max_source_positions"),
        notes=tuple(_notes(text, layers)),
    )


def invented_weights(config: Mapping[str, Any], card: ModelCard) -> tuple[Weights, ...]:
    """The weights that an engine creates for this configuration with dummy weights."""
    text = text_config(config)
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    gated, bits = bool(text.get("attn_output_gate")), _quantisation(config, text).bits
    return weights_by_shape(card, tied=bool(tied), gated=gated, bits=bits)


def _quantisation(config: Mapping[str, Any], text: Mapping[str, Any]) -> Quantisation:
    dense = _dense_size(text), first_count(text, "first_k_dense_replace")
    return read_quantisation(_quantisation_table(config, text), *dense)


def _quantisation_table(config: Mapping[str, Any], text: Mapping[str, Any]) -> Mapping[str, Any]:
    name = "quantization_config"
    return table_value(config, name) or table_value(text, name)


def _shared_experts(text: Mapping[str, Any]) -> int:
    """Width of the shared experts, which process every token; 0 without any."""
    each = first_count(text, "moe_intermediate_size") * first_count(text, "n_shared_experts")
    return first_count(text, "shared_expert_intermediate_size") or each


def _dense_size(text: Mapping[str, Any]) -> int:
    """Width of the dense MLPs before, between or alongside experts; 0 without any."""
    between = first_count(text, "decoder_sparse_step", "interleave_moe_layer_step") > 1
    before = bool(text.get("mlp_only_layers")) or bool(first_count(text, "first_k_dense_replace"))
    alongside = text_value(text, "model_type").startswith("gemma4")
    if not (between or before or alongside):
        return 0
    return first_count(text, "intermediate_size_mlp", "intermediate_size")


def _dense_layers(text: Mapping[str, Any], layers: int) -> int:
    """Number of layers with a dense MLP instead of experts."""
    named = text.get("mlp_only_layers")
    only = set(named) if isinstance(named, list) and all(type(n) is int for n in named) else set()
    first = first_count(text, "first_k_dense_replace")
    every = first_count(text, "decoder_sparse_step", "interleave_moe_layer_step") or 1
    return sum(n < first or n in only or (n + 1) % every != 0 for n in range(layers))


def _latent_attention(text: Mapping[str, Any]) -> LatentAttention:
    return LatentAttention(
        rank=first_count(text, "kv_lora_rank"),
        key_dim=first_count(text, "qk_nope_head_dim"),
        value_dim=first_count(text, "v_head_dim"),
        query_rank=first_count(text, "q_lora_rank"),
    )


def layer_types(text: Mapping[str, Any]) -> tuple[str, ...]:
    """One type per layer: full attention, sliding window or recurrent state."""
    count = _layers(text, *LAYERS)
    listed = text.get("layer_types") or text.get("layers_block_type")
    if listed is not None:
        return _listed_layer_types(listed, count)
    pattern = text_value(text, "hybrid_override_pattern")
    if pattern:
        return _listed_layer_types(list(pattern), count)
    every = first_count(text, "full_attention_interval")
    if every and first_count(text, "linear_num_value_heads"):
        kinds = ("full_attention", "linear_attention")
        return tuple(kinds[(layer + 1) % every != 0] for layer in range(count))
    every = _pattern(text)
    if every:
        kinds = ("full_attention", "sliding_attention")
        return tuple(kinds[(layer + 1) % every != 0] for layer in range(count))
    windowed = text_value(text, "model_type") in WINDOWED and first_count(text, "sliding_window")
    return ("sliding_attention" if windowed else "full_attention",) * count


def _count_kv_shared(text: Mapping[str, Any], layers: tuple[str, ...]) -> int:
    """Number of final layers that reuse another layer's cache."""
    shared = first_count(text, "num_kv_shared_layers")
    if shared and shared >= len(layers):
        raise BadConfig(f'"num_kv_shared_layers" is {shared}, but it has {len(layers)} layers')
    return shared


def _pattern(text: Mapping[str, Any]) -> int:
    """Period of full attention: one layer in this many has it, the others a window; 0 if none."""
    every = text.get("sliding_window_pattern")
    window = first_count(text, "sliding_window") and text.get("use_sliding_window") is not False
    return every if window and type(every) is int and every > 0 else 0


def _listed_layer_types(names: Any, count: int) -> tuple[str, ...]:
    """Layer types as listed; entries beyond `count` belong to an MTP head."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadConfig(f"its list of layer types is {reprlib.repr(names)}, not a list of names")
    if len(names) > MAX_LAYERS:
        raise BadConfig(f"its list of layer types has {len(names)} entries, more than {MAX_LAYERS}")
    if len(names) < count:
        raise BadConfig(f"it has {count} layers but lists the types of {len(names)}")
    return tuple(LAYER_NAMES.get(str(name), str(name)) for name in names[: count or len(names)])


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise BadConfig('it names no "architectures"')
    if not isinstance(names[0], str) or not names[0].isidentifier():
        raise BadConfig(f'"architectures" names {reprlib.repr(names[0])}, which is not a class')
    return names[0]


def _notes(text: Mapping[str, Any], layers: tuple[str, ...]) -> list[Problem]:
    """Peculiarities in the sizes that leave the model usable."""
    wanted = {
        "num_hidden_layers": bool(layers),
        "hidden_size": bool(first_count(text, *HIDDEN)),
        "num_attention_heads": bool(first_count(text, *HEADS)),
        "vocab_size": bool(first_count(text, "vocab_size")),
    }
    absent = [name for name, present in wanted.items() if not present]
    unknown = sorted({kind for kind in layers if kind not in LAYER_NAMES.values()})
    notes: list[Problem] = []
    if absent:
        fact = f"config.json lacks {', '.join(absent)}: the engine uses defaults and the forecast"
        notes.append(Problem("", f"{fact} is wrong", "write them into config.json"))
    if unknown:
        fact = f"config.json has layers of an unknown type ({reprlib.repr(unknown[0])})"
        remedy = "compare the forecast with the engine's report after a start"
        notes.append(Problem("", f"{fact}: the forecast counts no cache for them", remedy))
    return notes


def declares_mtp(config: Mapping[str, Any]) -> bool:
    """Whether the configuration itself gives a number of MTP layers."""
    return any(first_count(text_config(config), name) for name in mtp.KEYS)


def _layers(text: Mapping[str, Any], *names: str) -> int:
    return _bounded(first_count(text, *names), f'"{names[0]}"')


def _bounded(count: int, name: str) -> int:
    if count > MAX_LAYERS:
        raise BadConfig(f"{name} is {count}, more than {MAX_LAYERS}")
    return count


def _dtype(config: Mapping[str, Any]) -> str:
    return text_value(config, "dtype") or text_value(config, "torch_dtype")


def _compute_type(dtype: str) -> str:
    """The type in which engines compute by default: float32 checkpoints are loaded in 16 bits
    (`_resolve_auto_dtype` in vLLM 0.21 and 0.33, and `_get_and_verify_dtype` in SGLang 0.5)."""
    return "bfloat16" if dtype.removeprefix("torch.") in ("", "float", "float32") else dtype


MAMBA_2 = (
    ("mamba_n_groups", "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_d_conv"),
    ("n_groups", "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "conv_kernel"),
    ("mamba_ngroups", "n_mamba_heads", "mamba_headdim", "mamba_d_state", "mamba_d_conv"),
)
"""Keys of groups, heads, head width, state and convolution: Granite 4 H, Nemotron-H, Zamba 2."""


def _mamba(text: Mapping[str, Any], hidden: int) -> LinearAttention | None:
    """Shape of Mamba-2's states; None if no known keys describe it."""
    for names in MAMBA_2:
        written = {**text, names[2]: None} if text.get(names[2]) == "auto" else text
        groups, heads, width, state, kernel = (first_count(written, name) for name in names)
        if heads and not width:
            width = (first_count(text, "mamba_expand") or 2) * hidden // heads
        if groups and heads and width and state and kernel:
            nemotron = "float32" if "nemotron" in text_value(text, "model_type").lower() else "auto"
            kind = text_value(text, "mamba_ssm_cache_dtype") or nemotron
            return LinearAttention(groups, heads, state, width, kernel, kind)
    return None


def _linear(text: Mapping[str, Any]) -> LinearAttention | None:
    if not first_count(text, "linear_num_value_heads"):
        return None
    sizes = {
        name: first_count(text, name)
        for name in (
            "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
            "linear_value_head_dim", "linear_conv_kernel_dim",
        )
    }  # fmt: skip
    absent = [name for name, size in sizes.items() if not size]
    if absent:
        raise BadConfig(f'it has linear attention but lacks "{absent[0]}"')
    return LinearAttention(
        key_heads=sizes["linear_num_key_heads"],
        value_heads=sizes["linear_num_value_heads"],
        key_dim=sizes["linear_key_head_dim"],
        value_dim=sizes["linear_value_head_dim"],
        conv_kernel=sizes["linear_conv_kernel_dim"],
        state_dtype=text_value(text, "mamba_ssm_dtype") or "auto",
    )
