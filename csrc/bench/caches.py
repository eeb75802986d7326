"""What each type of KV cache does to a real model on a real text. Needs transformers, but no GPU.

python bench/caches.py MODEL TEXT [TOKENS]

MODEL: a folder, or a GGUF file; TEXT: a file of which the first TOKENS tokens (2,048) are read.
Every layer reads its keys and values as the cache returns them, in float32 otherwise. Logits after
every 12th token of the last three quarters are compared with those over a float16 cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from caovan_vllm_sm75_turbo3.measure import caches
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

EVERY = 12


class Cache:
    """Attention over keys and values that were in a cache of one type."""

    def __init__(self) -> None:
        self.stored = caches.half
        self.rotations: dict[int, torch.Tensor] = {}

    def attend(self, module, query, key, value, *args, **kwargs):
        """PyTorch's attention; key, value: [B, Hkv, T, D]."""
        dim = key.shape[-1]
        if dim not in self.rotations:
            self.rotations[dim] = torch.randint(0, 2, (dim,)) * 2.0 - 1
        key, value = (
            self.stored(x.half(), self.rotations[dim]).to(query.dtype) for x in (key, value)
        )
        return sdpa_attention_forward(module, query, key, value, *args, **kwargs)


def load(path: Path, cache: Cache):
    """The tokenizer and the model, in float32, with its attention over `cache`."""
    folder, options = (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
    AttentionInterface.register("cached", cache.attend)
    AttentionMaskInterface.register("cached", sdpa_mask)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="cached", **options
    )
    return AutoTokenizer.from_pretrained(folder, **options), model.eval()


def main(path: Path, text: Path, count: int) -> None:
    torch.manual_seed(0)
    cache = Cache()
    tokenizer, model = load(path, cache)
    read = tokenizer(text.read_text(encoding="utf-8"), add_special_tokens=False).input_ids
    if len(read) < count:
        raise SystemExit(f"cannot read {count} tokens: {text} has {len(read)}")
    first = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    tokens = torch.tensor([[*first, *read]])[:, :count]
    places = torch.arange(count // 4, count - 1, EVERY)

    def logits() -> torch.Tensor:
        with torch.inference_mode():
            return model(tokens, logits_to_keep=places).logits[0]

    want, answers = logits(), tokens[0, places + 1]
    print(f"{path.name}, {count:,} tokens of {text.name}, {len(places)} places")
    print(
        "| cache | perplexity | KL, nats | top 20 kept | first kept |\n| --- " + "| --- " * 4 + "|"
    )
    for name in ("fp16", *caches.TYPES):
        cache.stored = caches.TYPES.get(name, caches.half)
        got = want if name == "fp16" else logits()
        loss = torch.nn.functional.cross_entropy(got, answers).exp().item()
        rows = [caches.compare(a, b) for a, b in zip(got.split(16), want.split(16), strict=True)]
        weights = [len(part) for part in want.split(16)]
        top, first, divergence = (
            sum(w * row[i] for w, row in zip(weights, rows, strict=True)) / sum(weights)
            for i in range(3)
        )
        print(f"| {name} | {loss:.2f} | {divergence:.2g} | {top:.1%} | {first:.1%} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 2048)
