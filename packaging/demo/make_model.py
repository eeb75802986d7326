#!/usr/bin/env python3
"""Make a tiny model here: nothing is downloaded.

    ENGINE/bin/python packaging/demo/make_model.py OUT [--kind demo]

Run by an engine's Python (it needs torch, tokenizers, safetensors). The models have the shapes and
the tensor names of the real families, so vLLM takes the same paths for them; the same kind is the
same bytes every time. OUT appears whole or not at all, and a folder with other contents is never
replaced.

    demo          hybrid_copy with words: it answers one sentence, and its drafts are accepted
    dense         Qwen3: two attention layers, random weights
    hybrid        Qwen3.5, text: three Gated DeltaNet layers, one attention layer, an MTP head;
                  random weights
    hybrid_copy   the same, made so that the MTP head's drafts are accepted
    hybrid_vl     the same as hybrid, wrapped with a vision config as real checkpoints are (serve
                  it with --language-model-only: the vision weights are absent)
    hybrid_mrope  hybrid with M-RoPE in a text-only config: with MTP it kills vLLM's CPU worker
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from caovand.core import tiny_chat

RECIPE = 1  # counts up when the same kind comes out as other bytes
STAMP = "caovan-demo.json"
VOCABULARY, HIDDEN, INNER, CONTEXT = 512, 64, 128, 131072
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}"
    "{{ m['content'] }}{% elif m['content'] %}{% for part in m['content'] %}{{ part['text'] }}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = (
    "the quick brown fox jumps over the lazy dog and the supervisor restarts the engine " * 20,
    "hello world user assistant system message token model serve health metrics " * 20,
)
# Gated DeltaNet: heads and their sizes; attention: heads, key-value heads, head size
KEY_HEADS, VALUE_HEADS, HEAD, KERNEL = 2, 4, 64, 4
KEYS, VALUES = KEY_HEADS * HEAD, VALUE_HEADS * HEAD
LAYERS = ("linear_attention", "linear_attention", "linear_attention", "full_attention")

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Model:
    """A config.json and the tensors of its model; `talks` if it is to say `tiny_chat`'s text."""

    config: dict[str, Any]
    weights: Weights
    talks: bool = False


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape) * 0.05


def attention(prefix: str, head: int, gated: bool) -> Weights:
    """A layer of 4 heads and 2 key-value heads; gated as in Qwen3.5, whose norms add 1 to w."""
    norm = torch.zeros if gated else torch.ones
    return {
        f"{prefix}.q_proj.weight": random(4 * head * (2 if gated else 1), HIDDEN),
        f"{prefix}.k_proj.weight": random(2 * head, HIDDEN),
        f"{prefix}.v_proj.weight": random(2 * head, HIDDEN),
        f"{prefix}.o_proj.weight": random(HIDDEN, 4 * head),
        f"{prefix}.q_norm.weight": norm(head),
        f"{prefix}.k_norm.weight": norm(head),
    }


def linear_attention(prefix: str) -> Weights:
    """A Gated DeltaNet layer."""
    return {
        f"{prefix}.in_proj_qkv.weight": random(2 * KEYS + VALUES, HIDDEN),
        f"{prefix}.in_proj_z.weight": random(VALUES, HIDDEN),
        f"{prefix}.in_proj_b.weight": random(VALUE_HEADS, HIDDEN),
        f"{prefix}.in_proj_a.weight": random(VALUE_HEADS, HIDDEN),
        f"{prefix}.conv1d.weight": random(2 * KEYS + VALUES, 1, KERNEL),
        f"{prefix}.A_log": torch.log(torch.rand(VALUE_HEADS) * 15 + 1),
        f"{prefix}.dt_bias": torch.ones(VALUE_HEADS),
        f"{prefix}.norm.weight": torch.ones(HEAD),
        f"{prefix}.out_proj.weight": random(HIDDEN, VALUES),
    }


def mlp_and_norms(prefix: str, norm: Callable[[int], torch.Tensor]) -> Weights:
    return {
        f"{prefix}.mlp.gate_proj.weight": random(INNER, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": random(INNER, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": random(HIDDEN, INNER),
        f"{prefix}.input_layernorm.weight": norm(HIDDEN),
        f"{prefix}.post_attention_layernorm.weight": norm(HIDDEN),
    }


def outer(norm: Callable[[int], torch.Tensor]) -> Weights:
    return {
        "model.embed_tokens.weight": random(VOCABULARY, HIDDEN),
        "model.norm.weight": norm(HIDDEN),
        "lm_head.weight": random(VOCABULARY, HIDDEN),
    }


def shared_config() -> dict[str, Any]:
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "attention_bias": False,
        "use_cache": True,
    }


def dense() -> Model:
    weights = outer(torch.ones)
    for n in range(2):
        prefix = f"model.layers.{n}"
        weights |= attention(f"{prefix}.self_attn", 32, gated=False)
        weights |= mlp_and_norms(prefix, torch.ones)
    return Model(
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "head_dim": 32,
            "num_hidden_layers": 2,
            "rope_theta": 1e6,
            **shared_config(),
        },
        weights,
    )


def hybrid_config(mrope: bool) -> dict[str, Any]:
    # with mrope_section in a text-only config the MTP drafter gets (3, n) positions, which vLLM's
    # CPU rotary kernel takes for 3n tokens: heap corruption. The wrapped config is fine.
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
    }
    if mrope:
        rope |= {"mrope_interleaved": True, "mrope_section": [3, 3, 2]}
    return {
        "model_type": "qwen3_5_text",
        "head_dim": HEAD,
        "num_hidden_layers": len(LAYERS),
        "attn_output_gate": True,
        "linear_conv_kernel_dim": KERNEL,
        "linear_key_head_dim": HEAD,
        "linear_value_head_dim": HEAD,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "layer_types": list(LAYERS),
        "full_attention_interval": len(LAYERS),
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "rope_parameters": rope,
        **shared_config(),
    }


def hybrid_weights() -> Weights:
    weights = outer(torch.zeros)
    for n, kind in enumerate(LAYERS):
        prefix = f"model.layers.{n}"
        if kind == "full_attention":
            weights |= attention(f"{prefix}.self_attn", HEAD, gated=True)
        else:
            weights |= linear_attention(f"{prefix}.linear_attn")
        weights |= mlp_and_norms(prefix, torch.zeros)
    weights |= {
        "mtp.fc.weight": random(HIDDEN, 2 * HIDDEN),
        "mtp.norm.weight": torch.zeros(HIDDEN),
        "mtp.pre_fc_norm_hidden.weight": torch.zeros(HIDDEN),
        "mtp.pre_fc_norm_embedding.weight": torch.zeros(HIDDEN),
    }
    weights |= attention("mtp.layers.0.self_attn", HEAD, gated=True)
    weights |= mlp_and_norms("mtp.layers.0", torch.zeros)
    return weights


def hybrid(mrope: bool = False) -> Model:
    return Model(
        {"architectures": ["Qwen3_5ForCausalLM"], **hybrid_config(mrope)}, hybrid_weights()
    )


def hybrid_copy() -> Model:
    """Every layer adds nothing, so the next token depends on the current one alone, and the MTP
    head computes the same function: its drafts are nearly always accepted."""
    made = hybrid()
    silent = ("o_proj.weight", "down_proj.weight", "out_proj.weight")
    weights = {
        name: torch.zeros_like(tensor) if name.endswith(silent) else tensor
        for name, tensor in made.weights.items()
    }
    embedding = torch.randn(VOCABULARY, HIDDEN)
    embedding = embedding / embedding.norm(dim=1, keepdim=True) * 8
    weights["model.embed_tokens.weight"] = embedding
    # token t is followed by t + 1
    weights["lm_head.weight"] = embedding[torch.arange(VOCABULARY).roll(1)]
    weights["mtp.fc.weight"] = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1)
    return Model(made.config, weights)


def demo() -> Model:
    """As hybrid_copy; its embeddings are written once the tokens are known."""
    made = hybrid_copy()
    return Model(made.config, made.weights, talks=True)


def lookup(tokenizer: Tokenizer) -> Weights:
    """Embedding and head with which each piece of the text leads to the next one."""
    ids = [tokenizer.token_to_id(piece.replace(" ", "\u0120")) for piece in tiny_chat.PIECES]
    assert None not in ids
    embedding, head = torch.zeros(VOCABULARY, HIDDEN), torch.zeros(VOCABULARY, HIDDEN)
    embedding[:, 0] = 8  # whatever is not in the text
    followers = [*ids, tokenizer.token_to_id(tiny_chat.END)]
    for n, follower in enumerate(followers):
        head[follower, n] = 8
        if n:
            embedding[ids[n - 1], 0], embedding[ids[n - 1], n] = 0, 8
    return {"model.embed_tokens.weight": embedding, "lm_head.weight": head}


def hybrid_vl() -> Model:
    weights = {
        f"model.language_model.{name.removeprefix('model.')}"
        if name.startswith("model.")
        else name: tensor
        for name, tensor in hybrid_weights().items()
    }
    vision = {
        "model_type": "qwen3_5",
        "depth": 1,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 64,
        "out_hidden_size": HIDDEN,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 64,
        "in_channels": 3,
    }
    return Model(
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": hybrid_config(mrope=True),
            "vision_config": vision,
            "image_token_id": 505,
            "video_token_id": 506,
            "vision_start_token_id": 507,
            "vision_end_token_id": 508,
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        },
        weights,
    )


KINDS: dict[str, Callable[[], Model]] = {
    "demo": demo,
    "dense": dense,
    "hybrid": hybrid,
    "hybrid_copy": hybrid_copy,
    "hybrid_vl": hybrid_vl,
    "hybrid_mrope": lambda: hybrid(mrope=True),
}


def trained(corpus: Iterable[str], special: Sequence[str]) -> Tokenizer:
    """A byte-level BPE of a few words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(special),
        special_tokens=[],
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=token in SPECIAL, normalized=False) for token in special]
    )
    assert tokenizer.get_vocab_size() <= VOCABULARY
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer, template: str) -> dict[str, int]:
    """Write it with a chat template; returns the ids of the special tokens."""
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {token: int(tokenizer.token_to_id(token)) for token in SPECIAL}
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": template,
        },
    )
    write_json(
        folder / "generation_config.json",
        {
            "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
            "pad_token_id": ids["<|endoftext|>"],
        },
    )
    return ids


def write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def write(kind: str, folder: Path) -> None:
    """Write a model of a kind into a folder that exists; the stamp comes last."""
    torch.manual_seed(0)
    model = KINDS[kind]()
    if model.talks:
        calls = (tiny_chat.CALL, tiny_chat.END_OF_CALL)
        tokenizer = trained([tiny_chat.TEXT], (*SPECIAL, *calls))
        model.weights.update(lookup(tokenizer))
        ids = write_tokenizer(folder, tokenizer, tiny_chat.TEMPLATE)
    else:
        ids = write_tokenizer(folder, trained(CORPUS, SPECIAL), CHAT_TEMPLATE)
    text = model.config.get("text_config", model.config)
    text |= {
        "vocab_size": VOCABULARY,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    write_json(folder / "config.json", model.config)
    save_file(
        {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.weights.items()},
        str(folder / "model.safetensors"),
        metadata={"format": "pt"},
    )
    write_json(folder / STAMP, stamp(kind))


def stamp(kind: str) -> dict[str, Any]:
    return {"kind": kind, "recipe": RECIPE}


def is_made(kind: str, folder: Path) -> bool:
    """Whether the folder already contains this model; SystemExit if it contains something else."""
    if not folder.exists():
        return False
    try:
        found = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    if found.get("kind") == kind:  # of an older recipe: ours to replace
        return bool(found == stamp(kind))
    holds = f"a {found['kind']} model" if "kind" in found else "something else"
    raise SystemExit(
        f"cannot make a {kind} model in {folder}: the folder exists and contains {holds}; remove "
        "it, or choose another"
    )


def put(temp: Path, out: Path) -> None:
    """Rename the finished folder to its place; an older one of ours goes first."""
    if out.exists():
        old = temp.with_suffix(".old")
        out.rename(old)
        shutil.rmtree(old)
    temp.rename(out)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to create")
    parser.add_argument(
        "--kind", choices=sorted(KINDS), default="demo", help="default: %(default)s"
    )
    args = parser.parse_args(argv)
    out = args.out.absolute()
    if is_made(args.kind, out):
        os.utime(out)  # make compares it with this file
        print(f"{out} exists already")
        return 0
    out.parent.mkdir(parents=True, exist_ok=True)
    temp = out.with_name(f".{out.name}.{os.getpid()}.new")
    temp.mkdir()
    try:
        write(args.kind, temp)
        put(temp, out)
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    print(
        f"{out}: a {args.kind} model of {(out / 'model.safetensors').stat().st_size / 1e6:.1f} MB"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
