"""What each type of KV cache does to attention and to logits, in float64 on structured numbers.

python -m caovan_vllm_sm75_turbo3.measure.caches [HEAD_SIZE KEYS]...

Needs torch, but no GPU. Every type is compared with a float16 cache. Logits are projections of one
layer's attention alone: in a model the residual stream carries most of them, so a model's logits
change less for each layer, but it has many layers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from caovan_vllm_sm75_turbo3.measure import paged

Tensor = torch.Tensor

KV_HEADS, GROUP, TOKENS = 2, 6, 16
VOCABULARY, LOGITS = 4000, 4.0
"""Number of logits, and their standard deviation in a row, which a trained model has, too."""
FP8 = {"fp8 e4m3": torch.float8_e4m3fn, "fp8 e5m2": torch.float8_e5m2}


def _fp8(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows after a cache with a scale of 1 per tensor, saturated like vLLM's."""
    limit = torch.finfo(dtype).max
    return x.clamp(-limit, limit).to(dtype).double()


def _packed(kind: str, x: Tensor, signs: Tensor | None) -> Tensor:
    return paged.read(kind, paged.write(kind, x, signs), signs)


def _rotated_int8(x: Tensor, signs: Tensor) -> Tensor:
    return paged.unrotate(_packed("int8", paged.rotate(x, signs), None), signs)


def half(x: Tensor, signs: Tensor) -> Tensor:
    """Float16 rows after a float16 cache, float64."""
    return x.double()


TYPES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "fp8 e4m3": lambda x, _: _fp8(x, FP8["fp8 e4m3"]),
    "fp8 e5m2": lambda x, _: _fp8(x, FP8["fp8 e5m2"]),
    "int8": lambda x, _: _packed("int8", x, None),
    "int8 rotated": _rotated_int8,
    "int4": lambda x, _: _packed("int4", x, None),
    "int4 rotated": lambda x, signs: _packed("int4", x, signs),
}
"""What float16 rows [..., D] are after each cache, float64. vLLM has int8 without and int4 with the
Hadamard rotation; the other two show what the rotation does."""

KINDS = ("normal", "sharp", "heavy tails", "outlier channels", "sink", "32 directions")


@dataclass(frozen=True)
class Bound:
    """Limits for normal numbers, and over all KINDS: `Change.output` at most, `Change.top` at
    least."""

    output: float
    worst: float
    top: float
    least: float


BOUNDS = {
    "fp8 e4m3": Bound(0.05, 0.15, 0.92, 0.78),
    "fp8 e5m2": Bound(0.09, 0.30, 0.85, 0.65),
    "int8": Bound(0.015, 0.20, 0.97, 0.78),
    "int8 rotated": Bound(0.015, 0.05, 0.97, 0.90),
    "int4": Bound(0.17, 1.70, 0.75, 0.0),
    "int4 rotated": Bound(0.17, 0.60, 0.75, 0.40),
}
"""At contexts of 1,024 to 32,768 keys and head sizes of 128 and 256."""


def _directions(rows: Tensor, basis: Tensor) -> Tensor:
    """Rows of which most lies in the subspace of `basis` [32, D], of about the same size."""
    return 0.3 * rows + torch.randn(*rows.shape[:-1], 32) @ basis


def structured(kind: str, dim: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [Hkv, rows, D], keys and values [Hkv, keys, D], float16, of one of KINDS.

    Scores have a deviation of about 1 (normal) to 3.
    """
    q = torch.randn(KV_HEADS, GROUP * TOKENS, dim)
    k, v = torch.randn(2, KV_HEADS, keys, dim).unbind()
    if kind != "normal":
        q *= 3
    if kind == "heavy tails":  # Student's t with two degrees of freedom, truncated
        for x in (k, v):
            x.div_(torch.randn(2, *x.shape).square().sum(0).sqrt().clamp(min=0.1))
    elif kind == "outlier channels":  # the same in all keys, as rotary embeddings leave them
        k[..., ::64] *= 20
        q[..., ::64] /= 20
    elif kind == "sink":  # half of the weight lies on a first key without a value
        direction = torch.randn(dim)
        score = math.log(keys) + 3**2 / 2  # as much as all others together
        q += direction
        k[:, 0] = direction * score * dim**0.5 / direction.square().sum()
        v[:, 0] *= 0.01
    elif kind == "32 directions":
        basis = torch.randn(2, 32, dim) / 32**0.5
        q, k, v = _directions(q, basis[0]), _directions(k, basis[0]), _directions(v, basis[1])
    return q.half(), k.half(), v.half()


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v in float64."""
    scores = q.double() @ k.double().mT * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v.double()


@dataclass(frozen=True)
class Change:
    """The difference that a type of cache makes, from a float16 cache."""

    output: float
    """Relative root mean square error of attention's output."""
    top: float
    """Share of the 20 largest logits that stay among the 20 largest, over all rows."""
    first: float
    """Share of rows whose largest logit stays the same."""
    divergence: float
    """Mean Kullback-Leibler divergence of the distributions, in nats."""


def compare(got: Tensor, want: Tensor) -> tuple[float, float, float]:
    """`top`, `first` and `divergence` of logits [rows, V] against others."""
    ours, theirs = got.topk(20).indices, want.topk(20).indices
    kept = (ours[:, :, None] == theirs[:, None]).any(1).double().mean().item()
    first = (ours[:, 0] == theirs[:, 0]).double().mean().item()
    logs = want.log_softmax(-1), got.log_softmax(-1)
    return kept, first, (logs[0].exp() * (logs[0] - logs[1])).sum(-1).mean().item()


def changes(kind: str, dim: int, keys: int) -> dict[str, Change]:
    """The change by each of TYPES, on one draw of `kind`."""
    q, k, v = structured(kind, dim, keys)
    signs = torch.randint(0, 2, (dim,)) * 2.0 - 1
    want = attention(q, k, v)

    def rows(out: Tensor) -> Tensor:  # [tokens, heads x D]
        return out.unflatten(1, (TOKENS, GROUP)).transpose(0, 1).flatten(1)

    head = torch.randn(rows(want).shape[1], VOCABULARY, dtype=torch.float64)
    logits = rows(want) @ head
    factor = LOGITS / logits.std(1, keepdim=True)
    found = {}
    for name, stored in TYPES.items():
        got = attention(q, stored(k, signs), stored(v, signs))
        output = ((got - want).square().mean() / want.square().mean()).sqrt().item()
        found[name] = Change(output, *compare(rows(got) @ head * factor, logits * factor))
    return found


def show(dim: int, keys: int) -> None:
    print(f"\nhead size {dim}, {keys:,} keys: output error, top 20, first, KL")
    print(f"| cache | {' | '.join(KINDS)} |\n| --- {'| --- ' * len(KINDS)}|")
    by_kind = [changes(kind, dim, keys) for kind in KINDS]
    for name in TYPES:
        cells = (
            f"{c[name].output:.1%}, {c[name].top:.0%}, {c[name].first:.0%}, "
            f"{c[name].divergence:.2g}"
            for c in by_kind
        )
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    sizes = [int(word) for word in sys.argv[1:]]
    for dim, keys in (
        zip(sizes[::2], sizes[1::2], strict=True)
        if sizes
        else [(dim, keys) for dim in (128, 256) for keys in (1024, 8192, 32_768)]
    ):
        show(dim, keys)
