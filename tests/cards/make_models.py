"""Models of a size that a card notices, by an engine's Python with CUDA: KIND FOLDER.

dense is a Qwen3 of 4.6 G parameters, hybrid a Qwen3.5 of 1.4 G with an MTP head whose drafts are
never accepted, wide the same with a vocabulary of 248,320. Random weights, the tokenizer and the
layout of packaging/demo/make_model.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packaging/demo"))
import make_model as demo  # type: ignore[import-not-found, unused-ignore]
import torch

DENSE_LAYERS = 24


def attention(heads: int, kv_heads: int) -> Any:
    """As the demo's, with so many heads."""

    def make(prefix: str, head: int, gated: bool) -> dict[str, torch.Tensor]:
        norm = torch.zeros if gated else torch.ones
        return {
            f"{prefix}.q_proj.weight": demo.random(heads * head * (2 if gated else 1), demo.HIDDEN),
            f"{prefix}.k_proj.weight": demo.random(kv_heads * head, demo.HIDDEN),
            f"{prefix}.v_proj.weight": demo.random(kv_heads * head, demo.HIDDEN),
            f"{prefix}.o_proj.weight": demo.random(demo.HIDDEN, heads * head),
            f"{prefix}.q_norm.weight": norm(head),
            f"{prefix}.k_norm.weight": norm(head),
        }

    return make


def dense() -> demo.Model:
    demo.HIDDEN, demo.INNER = 4096, 12288
    attend, weights = attention(32, 8), demo.outer(torch.ones)
    for n in range(DENSE_LAYERS):
        prefix = f"model.layers.{n}"
        weights |= attend(f"{prefix}.self_attn", 128, False)
        weights |= demo.mlp_and_norms(prefix, torch.ones)
    shape = {"head_dim": 128, "num_hidden_layers": DENSE_LAYERS, "rope_theta": 1e6}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8}
    named = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    return demo.Model({**named, **shape, **demo.shared_config(), **heads}, weights)


def hybrid() -> demo.Model:
    demo.HIDDEN, demo.INNER = 2048, 6144
    demo.KEY_HEADS, demo.VALUE_HEADS, demo.HEAD = 16, 32, 128
    demo.KEYS, demo.VALUES, demo.LAYERS = 16 * 128, 32 * 128, demo.LAYERS * 5
    demo.attention = attention(16, 4)
    made = demo.hybrid_vl()
    made.config["text_config"] |= {
        "num_attention_heads": 16, "num_key_value_heads": 4, "full_attention_interval": 4
    }  # fmt: skip
    # A quarter of a head is rotated, half of that by each of sine and cosine.
    made.config["text_config"]["rope_parameters"]["mrope_section"] = [6, 5, 5]
    return made


def wide() -> demo.Model:
    demo.VOCABULARY = 248_320
    return hybrid()


def main(kind: str, folder: Path) -> None:
    torch.set_default_device("cuda")
    torch.set_default_dtype(torch.bfloat16)
    demo.random = lambda *shape: torch.randn(*shape) * 0.02
    demo.CONTEXT = 32768
    made = {"dense": dense, "hybrid": hybrid, "wide": wide}[kind]()
    weights = {name: tensor.cpu() for name, tensor in made.weights.items()}
    demo.KINDS[kind] = lambda: demo.Model(made.config, weights)
    folder.mkdir(parents=True)
    demo.write(kind, folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
