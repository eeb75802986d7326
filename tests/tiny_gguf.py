"""Creates tiny random models in GGUF files: tiny_gguf.py ARCHITECTURE FILE [PARTS].

Each takes half a megabyte and has a vocabulary of bytes. llama-server loads it in milliseconds and
generates nonsense. It needs only the standard library.
"""

from __future__ import annotations

import array
import random
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

WIDTH, INNER, HEADS, KV_HEADS, HEAD, CONTEXT = 64, 128, 4, 2, 16, 2048
EXPERTS, USED = 8, 2
STATE, GROUPS, RANK, KERNEL = 16, 2, 4, 4  # of recurrent layers
SSM = 128
VOCABULARY = 259
CHATML = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
ALIGNMENT = 32
SMALL = [place / 2560 for place in range(-256, 257)]
U32, F32, BOOL, TEXT, ARRAY, U16, U64, I32 = 4, 6, 7, 8, 9, 2, 10, 5
Tensors = dict[str, tuple[int, ...]]
"""Names and shapes, the fastest dimension first."""


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(kind: int, content: Any) -> bytes:
    """A value with its type; for an array, `content` is (type of the entries, entries)."""
    packed = struct.pack("<I", kind)
    if kind == TEXT:
        return packed + text(content)
    if kind == ARRAY:
        inner, entries = content
        head = packed + struct.pack("<IQ", inner, len(entries))
        return head + b"".join(value(inner, one)[4:] for one in entries)
    codes = {U32: "I", F32: "f", BOOL: "?", U16: "H", U64: "Q", I32: "i"}
    return packed + struct.pack("<" + codes[kind], content)


def vocabulary() -> dict[str, bytes]:
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    more = VOCABULARY - len(tokens)
    tokens += [f"word{number}".encode() for number in range(more)]
    kinds = [2, 3, 3] + [6] * 256 + [1] * more
    return {
        "tokenizer.ggml.model": value(TEXT, "llama"),
        "tokenizer.ggml.tokens": value(ARRAY, (TEXT, tokens)),
        "tokenizer.ggml.scores": value(ARRAY, (F32, [0.0] * len(tokens))),
        "tokenizer.ggml.token_type": value(ARRAY, (I32, kinds)),
        "tokenizer.ggml.bos_token_id": value(U32, 1),
        "tokenizer.ggml.eos_token_id": value(U32, 2),
        "tokenizer.ggml.unknown_token_id": value(U32, 0),
        "tokenizer.chat_template": value(TEXT, CHATML),
    }


def _attention(layer: str, *, queries: int = 1, more: Iterable[str] = ()) -> Tensors:
    found = {
        f"{layer}.attn_norm.weight": (WIDTH,),
        f"{layer}.attn_q.weight": (WIDTH, HEADS * HEAD * queries),
        f"{layer}.attn_k.weight": (WIDTH, KV_HEADS * HEAD),
        f"{layer}.attn_v.weight": (WIDTH, KV_HEADS * HEAD),
        f"{layer}.attn_output.weight": (HEADS * HEAD, WIDTH),
    }
    shapes = {
        "attn_q.bias": (HEADS * HEAD,), "attn_k.bias": (KV_HEADS * HEAD,),
        "attn_v.bias": (KV_HEADS * HEAD,), "attn_q_norm.weight": (HEAD,),
        "attn_k_norm.weight": (HEAD,), "post_attention_norm.weight": (WIDTH,),
        "post_ffw_norm.weight": (WIDTH,),
    }  # fmt: skip
    return {**found, **{f"{layer}.{name}": shapes[name] for name in more}}


def _mlp(layer: str, norm: str | None = "ffn_norm.weight") -> Tensors:
    found: Tensors = {f"{layer}.{norm}": (WIDTH,)} if norm else {}
    for name in ("ffn_gate", "ffn_up"):
        found[f"{layer}.{name}.weight"] = (WIDTH, INNER)
    found[f"{layer}.ffn_down.weight"] = (INNER, WIDTH)
    return found


def _experts(layer: str) -> Tensors:
    half = INNER // 2
    return {
        f"{layer}.ffn_norm.weight": (WIDTH,),
        f"{layer}.ffn_gate_inp.weight": (WIDTH, EXPERTS),
        f"{layer}.ffn_gate_exps.weight": (WIDTH, half, EXPERTS),
        f"{layer}.ffn_up_exps.weight": (WIDTH, half, EXPERTS),
        f"{layer}.ffn_down_exps.weight": (half, WIDTH, EXPERTS),
    }


def _mamba(layer: str, *, norm: bool) -> Tensors:
    conv = SSM + 2 * GROUPS * STATE
    found = {
        f"{layer}.ssm_in.weight": (WIDTH, SSM + conv + RANK),
        f"{layer}.ssm_conv1d.weight": (KERNEL, conv),
        f"{layer}.ssm_conv1d.bias": (conv,),
        f"{layer}.ssm_dt.bias": (RANK,),
        f"{layer}.ssm_a": (1, RANK),
        f"{layer}.ssm_d": (1, RANK),
        f"{layer}.ssm_norm.weight": (SSM // GROUPS, GROUPS),
        f"{layer}.ssm_out.weight": (SSM, WIDTH),
    }
    return {f"{layer}.attn_norm.weight": (WIDTH,), **found} if norm else found


def _delta(layer: str) -> Tensors:
    """Qwen3.5's Gated DeltaNet; keys and values are STATE wide."""
    keys, values = STATE * GROUPS, STATE * RANK
    return {
        f"{layer}.attn_norm.weight": (WIDTH,),
        f"{layer}.post_attention_norm.weight": (WIDTH,),
        f"{layer}.attn_qkv.weight": (WIDTH, keys * 2 + values),
        f"{layer}.attn_gate.weight": (WIDTH, values),
        f"{layer}.ssm_conv1d.weight": (KERNEL, keys * 2 + values),
        f"{layer}.ssm_dt.bias": (RANK,),
        f"{layer}.ssm_a": (RANK,),
        f"{layer}.ssm_beta.weight": (WIDTH, RANK),
        f"{layer}.ssm_alpha.weight": (WIDTH, RANK),
        f"{layer}.ssm_norm.weight": (STATE,),
        f"{layer}.ssm_out.weight": (values, WIDTH),
        **_mlp(layer, None),
    }


NORMS = ("attn_q_norm.weight", "attn_k_norm.weight")
BIASES = ("attn_q.bias", "attn_k.bias", "attn_v.bias")


def _qwen35(layer: str, place: int) -> Tensors:
    if place % 4 == 3 or place == 8:
        found = _attention(layer, queries=2, more=(*NORMS, "post_attention_norm.weight"))
        found |= _mlp(layer, None)
        nextn = {"eh_proj": (2 * WIDTH, WIDTH), "enorm": (WIDTH,), "hnorm": (WIDTH,),
                 "shared_head_norm": (WIDTH,)}  # fmt: skip
        if place == 8:
            found |= {f"{layer}.nextn.{name}.weight": shape for name, shape in nextn.items()}
        return found
    return _delta(layer)


Layer = Callable[[str, int], Tensors]
LAYERS: Mapping[str, tuple[int, Layer]] = {
    "llama": (2, lambda layer, _: _attention(layer) | _mlp(layer)),
    "qwen2": (3, lambda layer, _: _attention(layer, more=BIASES) | _mlp(layer)),
    "qwen3": (3, lambda layer, _: _attention(layer, more=NORMS) | _mlp(layer)),
    "qwen3moe": (3, lambda layer, _: _attention(layer, more=NORMS) | _experts(layer)),
    "gemma3": (
        6,
        lambda layer, _: (
            _attention(layer, more=(*NORMS, "post_attention_norm.weight", "post_ffw_norm.weight"))
            | _mlp(layer)
        ),
    ),
    "qwen35": (9, _qwen35),
    "mamba2": (2, lambda layer, _: _mamba(layer, norm=True)),
    "falcon-h1": (
        2,
        lambda layer, _: _mamba(layer, norm=False) | _attention(layer) | _mlp(layer, "ffn_norm"),
    ),
}
"""The number of layers of each architecture's model, and the tensors of a layer."""


def _values(architecture: str, layers: int) -> dict[str, bytes]:
    counts: dict[str, int] = {
        "context_length": CONTEXT, "embedding_length": WIDTH, "block_count": layers,
        "feed_forward_length": INNER, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "rope.dimension_count": HEAD, "vocab_size": VOCABULARY,
    }  # fmt: skip
    more: dict[str, bytes] = {}
    recurrent = {
        "ssm.conv_kernel": KERNEL, "ssm.inner_size": SSM, "ssm.state_size": STATE,
        "ssm.time_step_rank": RANK, "ssm.group_count": GROUPS,
    }  # fmt: skip
    if architecture == "qwen3moe":
        counts |= {"expert_count": EXPERTS, "expert_used_count": USED,
                   "expert_feed_forward_length": INNER // 2}  # fmt: skip
    if architecture == "gemma3":
        counts["attention.sliding_window"] = 64
    if architecture in ("mamba2", "falcon-h1"):
        counts |= recurrent
    if architecture == "mamba2":
        counts |= {"attention.head_count": 0, "attention.head_count_kv": 0}
        for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            del counts[name]
    if architecture == "qwen35":
        counts |= {**recurrent, "ssm.inner_size": STATE * RANK, "nextn_predict_layers": 1,
                   "full_attention_interval": 4}  # fmt: skip
        more["rope.dimension_sections"] = value(ARRAY, (I32, [4, 2, 2, 0]))
    return {
        "general.architecture": value(TEXT, architecture),
        "general.name": value(TEXT, f"tiny {architecture}"),
        "general.file_type": value(U32, 0),
        f"{architecture}.attention.layer_norm_rms_epsilon": value(F32, 1e-5),
        **{f"{architecture}.{name}": value(U32, number) for name, number in counts.items()},
        **{f"{architecture}.{name}": packed for name, packed in more.items()},
        **vocabulary(),
    }


def shapes(architecture: str, *, tied: bool = False) -> Tensors:
    """The tensors of a model; if `tied`, its embedding is also its output layer."""
    layers, make = LAYERS[architecture]
    found: Tensors = {"token_embd.weight": (WIDTH, VOCABULARY)}
    for place in range(layers):
        found |= make(f"blk.{place}", place)
    found["output_norm.weight"] = (WIDTH,)
    return found if tied else {**found, "output.weight": (WIDTH, VOCABULARY)}


def _data(name: str, shape: tuple[int, ...], chance: random.Random) -> bytes:
    count = prod(shape)
    if name.endswith("ssm_a"):
        numbers = [-1.0] * count
    elif "norm" in name:
        numbers = [1.0] * count
    else:
        numbers = chance.choices(SMALL, k=count)
    return array.array("f", numbers).tobytes()


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def assemble(values: Mapping[str, bytes], tensors: Tensors, data: Mapping[str, bytes]) -> bytes:
    """A file made of packed values by key, the shapes, and the 32-bit floats of each tensor."""
    sizes = {name: len(data[name]) for name in tensors}
    head, _ = header(values, tensors, sizes)
    return head + b"".join(padded(data[name]) for name in tensors)


def header(
    values: Mapping[str, bytes], tensors: Tensors, sizes: Mapping[str, int]
) -> tuple[bytes, int]:
    """A file's bytes up to its tensors, and the size of the whole file."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(values))]
    head += [text(key) + packed for key, packed in values.items()]
    at = 0
    for name, shape in tensors.items():
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head.append(text(name) + dimensions + struct.pack("<IQ", 0, at))
        at += sizes[name] + -sizes[name] % ALIGNMENT
    begin = padded(b"".join(head))
    return begin, len(begin) + at


def header_of(architecture: str) -> tuple[bytes, int]:
    """The header of a model without its tensors, and the size of the whole file."""
    tensors = shapes(architecture)
    sizes = {name: 4 * prod(shape) for name, shape in tensors.items()}
    return header(_values(architecture, LAYERS[architecture][0]), tensors, sizes)


def make(architecture: str, *, tied: bool = False, values: Mapping[str, bytes] = {}) -> bytes:
    """A whole model in one file; `values` override the architecture's, by full key."""
    chance = random.Random(architecture)
    tensors = shapes(architecture, tied=tied)
    data = {name: _data(name, shape, chance) for name, shape in tensors.items()}
    own = _values(architecture, LAYERS[architecture][0])
    return assemble({**own, **values}, tensors, data)


def write_parts(architecture: str, path: Path, count: int) -> list[Path]:
    """Write a model split over the files NAME-00001-of-0000N.gguf; returns their paths."""
    chance = random.Random(architecture)
    tensors = list(shapes(architecture).items())
    own = _values(architecture, LAYERS[architecture][0])
    step = -(-len(tensors) // count)
    made = []
    for number in range(count):
        part = dict(tensors[number * step : (number + 1) * step])
        data = {name: _data(name, shape, chance) for name, shape in part.items()}
        split = {
            "split.no": value(U16, number),
            "split.count": value(U16, count),
            "split.tensors.count": value(I32, len(tensors)),
        }
        file = path.with_name(f"{path.stem}-{number + 1:05}-of-{count:05}.gguf")
        file.write_bytes(assemble({**own, **split} if number == 0 else split, part, data))
        made.append(file)
    return made


def make_encoder(layers: int = 2) -> bytes:
    """A BERT that embeds by its first token, with a WordPiece vocabulary of letters."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"\u2581{chr(97 + n)}" for n in range(26))]
    tokens += [f"word{number}" for number in range(VOCABULARY - len(tokens))]
    sizes = {
        "block_count": layers, "context_length": 128, "embedding_length": WIDTH,
        "feed_forward_length": INNER, "attention.head_count": HEADS, "pooling_type": 2,
    }  # fmt: skip
    names = {"cls": 2, "seperator": 3, "unknown": 1, "padding": 0, "bos": 2, "eos": 3}
    values = {
        "general.architecture": value(TEXT, "bert"),
        **{f"bert.{key}": value(U32, size) for key, size in sizes.items()},
        "bert.attention.layer_norm_epsilon": value(F32, 1e-12),
        "bert.attention.causal": value(BOOL, False),
        "tokenizer.ggml.model": value(TEXT, "bert"),
        "tokenizer.ggml.token_type_count": value(U32, 2),
        "tokenizer.ggml.tokens": value(ARRAY, (TEXT, tokens)),
        "tokenizer.ggml.token_type": value(ARRAY, (I32, [3] * 4 + [1] * (VOCABULARY - 4))),
        **{f"tokenizer.ggml.{name}_token_id": value(U32, place) for name, place in names.items()},
    }
    tensors: Tensors = {
        "token_embd.weight": (WIDTH, VOCABULARY),
        "position_embd.weight": (WIDTH, 128),
        "token_types.weight": (WIDTH, 2),
        **_biased("token_embd_norm", WIDTH),
    }
    for place in range(layers):
        layer = f"blk.{place}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors.update(_biased(f"{layer}.{name}", WIDTH, WIDTH))
        tensors.update(_biased(f"{layer}.attn_output_norm", WIDTH))
        tensors.update(_biased(f"{layer}.ffn_up", WIDTH, INNER))
        tensors.update(_biased(f"{layer}.ffn_down", INNER, WIDTH))
        tensors.update(_biased(f"{layer}.layer_output_norm", WIDTH))
    chance = random.Random("bert")
    return assemble(values, tensors, {n: _data(n, s, chance) for n, s in tensors.items()})


def _biased(name: str, *shape: int) -> Tensors:
    return {f"{name}.weight": shape, f"{name}.bias": shape[-1:]}


def main(words: list[str]) -> None:
    architecture, path, *parts = words
    if parts:
        write_parts(architecture, Path(path), int(parts[0]))
    else:
        Path(path).write_bytes(make(architecture))


if __name__ == "__main__":
    main(sys.argv[1:])
