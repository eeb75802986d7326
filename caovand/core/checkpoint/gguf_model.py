"""Describe a model from the headers of its GGUF files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caovand.core.checkpoint.gguf import ArrayLength, GgufFile, GgufTensor
from caovand.core.checkpoint.values import BadConfig, require_count
from caovand.core.facts.gguf import Gguf, GgufLayer
from caovand.core.facts.inventory import ModelCard, Weights
from caovand.core.model_task import ModelTask
from caovand.core.problem import Problem

MAX_LAYERS = 1024
_LAYER = re.compile(r"blk\.(\d{1,5})\.")
_EXPERTS = re.compile(r"\.ffn_\w{1,20}_exps\.")

WINDOWED: Mapping[str, tuple[int, bool]] = {
    "gemma2": (2, False), "gemma3": (6, False), "gemma3n": (5, False), "gpt-oss": (2, False),
    "cohere2": (4, False), "cohere2moe": (4, True), "llama4": (4, False), "exaone4": (4, False),
    "gptoss": (2, False),
    "exaone-moe": (4, False), "olmo2": (4, False), "plamo3": (8, False), "afmoe": (4, False),
    "smallthinker": (4, True), "gemma-embedding": (6, False), "mellum": (4, False),
    "laguna": (4, True),
}  # fmt: skip
"""Window patterns that files may omit: architecture to (period, full attention first).

One layer per period attends to the whole context: the first of the period, else the last. For an
architecture without a row, and without a pattern in the file, the window is ignored: the forecast
is then too high rather than too low.
"""
OLLAMA_WINDOWS = {"gptoss": 4096}
"""Tokens that Ollama's own engine keeps of a window, by its name of the architecture."""
HYBRID_LAYERS = frozenset({"falcon-h1"})
"""Architectures whose layers have both attention and a recurrent state."""
INTERVAL = frozenset({"qwen3next", "qwen35", "qwen35moe", "qwen4exp", "minimax-text-01"})
"""Architectures with one attention layer per `full_attention_interval`, four by default."""
NO_ATTENTION = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
QUADRATIC = frozenset({"gemma3", "mistral3", "qwen25vl"})
QWEN_PIXELS = 28 * 28 * 1280
"""Ollama's limit for an image of Qwen2.5-VL if the file names none."""
STREAMS = 6
"""Hidden states of a patch that are alive in a layer: residual, norm, queries, keys, values and
output."""
NO_TEXT = frozenset({"clip", "wavtokenizer-dec", "t5encoder"})
"""Architectures that are not text models but process images or speech."""
ENCODERS = frozenset({
    "bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "modern-bert", "jina-bert-v2",
    "jina-bert-v3", "eurobert", "gemma-embedding", "llama-embed",
})  # fmt: skip
"""Embedding architectures: their tokens also attend to later ones, so they need no cache."""
RANK = 4
"""llama.cpp's pooling type of a reranker; 0 is no pooling."""
INDEXED = frozenset({
    "deepseek32", "deepseek4", "glm-dsa", "glm5-next", "hy-v4", "dots3note", "minimax-m3",
    "qwen4exp",
})  # fmt: skip
"""Architectures that also cache an index of their keys."""


@dataclass(frozen=True)
class _Keys:
    """One architecture's values, by name without its prefix."""

    values: Mapping[str, Any]
    architecture: str

    def raw(self, name: str) -> Any:
        return self.values.get(f"{self.architecture}.{name}")

    def number(self, name: str, default: int = 0) -> int:
        """A count; the largest if the file has one per layer."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, tuple):
            return max((require_count(name, item) for item in value), default=default)
        return require_count(name, value)

    def by_layer(self, name: str, layers: int, default: int = 0) -> tuple[int, ...]:
        """A count for each layer; the file has one for all or one per layer."""
        value = self.raw(name)
        if isinstance(value, tuple):
            each = tuple(require_count(name, int(item)) for item in value[:layers])
            return each + (each[-1] if each else default,) * (layers - len(each))
        return (self.number(name, default),) * layers


def describe(files: Sequence[tuple[str, GgufFile]], path: str) -> ModelCard:
    """Describe the model in these parts, in their order; raises BadConfig if they are no model."""
    values = files[0][1].values
    architecture = values.get("general.architecture")
    if not isinstance(architecture, str) or not architecture.isprintable():
        raise BadConfig("its header names no architecture")
    if architecture in NO_TEXT or values.get("general.type") == "mmproj":
        raise BadConfig(f"it is not a language model but a {architecture} component of one")
    keys = _Keys(values, architecture)
    every = keys.number("block_count")
    if not 1 <= every <= MAX_LAYERS:
        raise BadConfig(f"its header has {every} layers")
    tensors = [tensor for _, file in files for tensor in file.tensors]
    mtp = min(keys.number("nextn_predict_layers"), every - 1)
    has_mtp = any(f"blk.{every - 1}.nextn." in tensor.name for tensor in tensors)
    layers = _layers(keys, every, mtp if has_mtp else 0, tensors)
    outside = _sum_outside_layers(tensors, every)
    types: dict[str, int] = defaultdict(int)
    for tensor in tensors:
        types[tensor.dtype] += tensor.size
    gguf = Gguf(
        layers, outside["embedding"], outside["output"], outside["rest"],
        tuple(sorted(types.items())), tuple((name, file.size) for name, file in files),
        outside["vision"], _vision_graph(keys) if outside["vision"] else 0,
    )  # fmt: skip
    template = values.get("tokenizer.chat_template")
    heads = max(keys.number("attention.head_count", 1), 1)
    width = keys.number("embedding_length")
    return ModelCard(
        path=path,
        architecture=architecture,
        model_type=architecture,
        layer_types=tuple(map(_kind, layers[: every - mtp])),
        max_model_len=keys.number("context_length"),
        limit_known=keys.raw("context_length") is not None,
        mtp_layers=mtp if has_mtp else 0,
        hidden_size=width,
        intermediate_size=keys.number("feed_forward_length"),
        vocab_size=_vocabulary(values, keys, tensors),
        heads=heads,
        kv_heads=keys.number("attention.head_count_kv", heads),
        head_dim=keys.number("attention.key_length", width // heads),
        sliding_window=keys.number("attention.sliding_window"),
        quantization=max(types, key=lambda name: types[name], default=None),
        experts=keys.number("expert_count"),
        experts_per_token=keys.number("expert_used_count"),
        expert_size=keys.number("expert_feed_forward_length"),
        chat_template=template if isinstance(template, str) else None,
        weights=(Weights("layers", "sharded", "GGUF", gguf.size),),
        notes=_notes(architecture),
        gguf=gguf,
        task=_task(keys),
        one_step=_task(keys) != "generate",
    )


def _task(keys: _Keys) -> ModelTask:
    pooling = keys.number("pooling_type")
    if pooling == RANK:
        return "score"
    return "embed" if pooling or keys.architecture in ENCODERS else "generate"


def _notes(architecture: str) -> tuple[Problem, ...]:
    if architecture not in INDEXED:
        return ()
    fact = f"{architecture} keeps an index of its cache, which the memory forecast omits"
    return (Problem("", fact, "if the model does not fit, set a shorter [model] max_model_len"),)


def _kind(layer: GgufLayer) -> str:
    if layer.state_size and not layer.keys:
        return "mamba"
    return "sliding_attention" if layer.window else "full_attention"


def _layers(
    keys: _Keys, every: int, mtp: int, tensors: Sequence[GgufTensor]
) -> tuple[GgufLayer, ...]:
    sizes, experts = [0] * every, [0] * every
    for tensor in tensors:
        number = _LAYER.match(tensor.name)
        if number and int(number[1]) < every:
            sizes[int(number[1])] += tensor.size
            if _EXPERTS.search(tensor.name):
                experts[int(number[1])] += tensor.size
    heads = keys.by_layer("attention.head_count", every)
    kv_heads = keys.by_layer("attention.head_count_kv", every, max(heads, default=0))
    trunk = every - mtp
    windowed, recurrent = _window_pattern(keys, trunk), _recurrence_pattern(keys, trunk, kv_heads)
    state = _state_size(keys)
    own_cache = trunk - keys.number("attention.shared_kv_layers")
    layers = []
    for place in range(every):
        is_mtp, is_windowed = place >= trunk, place < trunk and windowed[place]
        has_state = place < trunk and recurrent[place]
        attends = not has_state or keys.architecture in HYBRID_LAYERS
        attends = attends and (place < own_cache or is_mtp)
        width_k, width_v = _widths(keys, is_windowed)
        cached = attends and keys.architecture not in NO_ATTENTION | ENCODERS
        many = kv_heads[place] if cached else 0
        layers.append(
            GgufLayer(
                size=sizes[place],
                expert_size=experts[place],
                keys=width_k * many,
                values=width_v * many,
                window=_window(keys) if is_windowed else 0,
                state_size=state if has_state else 0,
                mtp=is_mtp,
            )
        )
    return tuple(layers)


def _widths(keys: _Keys, windowed: bool) -> tuple[int, int]:
    """Elements of a head's keys and values; for MLA the compressed pair, which is kept once."""
    usual = keys.number("embedding_length") // max(keys.number("attention.head_count", 1), 1)
    key = keys.number("attention.key_length", usual)
    value = keys.number("attention.value_length", usual)
    if keys.raw("attention.key_length_mla") is not None:
        return key, 0
    if not windowed:
        return key, value
    return (
        keys.number("attention.key_length_swa", key),
        keys.number("attention.value_length_swa", value),
    )


def _window(keys: _Keys) -> int:
    """The tokens that a windowed layer keeps."""
    window = keys.number("attention.sliding_window")
    return max(window, OLLAMA_WINDOWS.get(keys.architecture, 0))


def _window_pattern(keys: _Keys, layers: int) -> list[bool]:
    """Whether each layer attends only within a window."""
    if not keys.number("attention.sliding_window"):
        return [False] * layers
    pattern = keys.raw("attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        return [bool(flag) for flag in pattern[:layers]] + [False] * (layers - len(pattern))
    row = WINDOWED.get(keys.architecture)
    if row is None:
        return [False] * layers
    period, first = row
    if pattern is not None and not isinstance(pattern, ArrayLength):
        period = require_count("sliding_window_pattern", pattern)
    if not period:
        return [True] * layers
    return [place % period != (0 if first else period - 1) for place in range(layers)]


def _recurrence_pattern(keys: _Keys, layers: int, kv_heads: Sequence[int]) -> list[bool]:
    """Whether each layer has a recurrent state."""
    stated = keys.raw("attention.recurrent_layers")
    if isinstance(stated, tuple):
        return [bool(flag) for flag in stated[:layers]] + [False] * (layers - len(stated))
    if keys.architecture in NO_ATTENTION or keys.architecture in HYBRID_LAYERS:
        return [True] * layers
    if keys.architecture in INTERVAL:
        interval = keys.number("full_attention_interval", 4) or 1
        return [(place + 1) % interval != 0 for place in range(layers)]
    if not _state_size(keys):
        return [False] * layers
    # Nemotron's layers without attention may also be plain MLPs.
    widths = keys.by_layer("feed_forward_length", layers)
    plain_mlp = isinstance(keys.raw("feed_forward_length"), tuple)
    return [
        kv_heads[place] == 0 and not (plain_mlp and widths[place] and _is_nemotron(keys))
        for place in range(layers)
    ]


def _is_nemotron(keys: _Keys) -> bool:
    return keys.architecture.startswith("nemotron_h")


def _state_size(keys: _Keys) -> int:
    """Bytes of one layer's state for one sequence, in float32: convolution and recurrent state."""
    width = keys.number("embedding_length")
    wkv = keys.number("wkv.head_size")
    if wkv:
        return 4 * (keys.number("token_shift_count", 2) * width + width * wkv)
    short = keys.number("shortconv.l_cache")
    if short:
        return 4 * width * (short - 1)
    inner, state = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    delta = keys.number("kda.head_dim")
    kernel = keys.number("ssm.conv_kernel")
    if delta:
        heads = keys.number("attention.head_count")
        return 4 * (3 * (kernel - 1 if kernel else 3) * heads * delta + delta * delta * heads)
    groups = keys.number("ssm.group_count")
    return 4 * (max(kernel - 1, 0) * (inner + 2 * groups * state) + state * inner)


_OUTSIDE = {
    "token_embd.weight": "embedding", "per_layer_token_embd.weight": "embedding",
    "output.weight": "output",
}  # fmt: skip
"""Parts of the model by tensor name, for tensors outside the layers."""


def _sum_outside_layers(tensors: Sequence[GgufTensor], every: int) -> dict[str, int]:
    """Bytes of tensors outside the layers, by part."""
    sizes = {"embedding": 0, "output": 0, "vision": 0, "rest": 0}
    for tensor in tensors:
        number = _LAYER.match(tensor.name)
        if number and int(number[1]) < every:
            continue
        part = "vision" if tensor.name.startswith(("v.", "mm.")) else "rest"
        sizes[_OUTSIDE.get(tensor.name, part)] += tensor.size
    return sizes


def _vision_graph(keys: _Keys) -> int:
    """Bytes of the largest step of an image encoder whose attention computes all scores at once, in
    float32: with a score for every pair of patches, Ollama's graph of Gemma 3 needed 1.19 GiB.
    """
    patch = keys.number("vision.patch_size")
    if keys.architecture not in QUADRATIC or not patch:
        return 0
    side = keys.number("vision.image_size") // patch
    patches = side * side
    if keys.architecture == "qwen25vl":
        patches = keys.number("vision.max_pixels", QWEN_PIXELS) // patch**2
    scores = patches * keys.number("vision.attention.head_count")
    vectors = keys.number("vision.feed_forward_length") + STREAMS * keys.number(
        "vision.embedding_length"
    )
    return 4 * patches * (scores + vectors)


def _vocabulary(values: Mapping[str, Any], keys: _Keys, tensors: Sequence[GgufTensor]) -> int:
    tokens = values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, ArrayLength):
        return tokens.entries
    shapes = [tensor.shape for tensor in tensors if tensor.name == "token_embd.weight"]
    return shapes[0][-1] if shapes and shapes[0] else keys.number("vocab_size")
