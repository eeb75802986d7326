"""Paged KV caches in vLLM 0.32's layout, and attention over them in float64.

A cache is [blocks, KV heads, block size, content], see `launch.attention_args`. `write` mirrors
vLLM's kernels that fill a cache, in float64 up to the rounding to four or eight bits.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor
DTYPES = {
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
    "int4": torch.uint8,
}
FP8_SCALE = 0.03125
"""Scale of an fp8 cache's keys and values here: a power of two, which adds no rounding."""


def content(kind: str, dim: int) -> int:
    """Number of elements per token and head."""
    return {"fp16": 2 * dim, "fp8": 2 * dim, "int8": 2 * (dim + 4), "int4": 2 * (dim // 2 + 4)}[
        kind
    ]


def hadamard(dim: int, device: torch.device) -> Tensor:
    """The unnormalised, symmetric Hadamard matrix; its square is dim times the identity."""
    h = torch.ones(1, 1, dtype=torch.float64, device=device)
    while h.shape[0] < dim:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h


def _round(x: Tensor) -> Tensor:
    """Round to the nearest integer, halves away from zero."""
    return torch.where(x >= 0, (x + 0.5).floor(), (x - 0.5).ceil())


def rotate(x: Tensor, signs: Tensor) -> Tensor:
    """H(signs x) of rows [..., D] in float64, H without a factor."""
    return (x.double() * signs.double()) @ hadamard(x.shape[-1], x.device)


def unrotate(x: Tensor, signs: Tensor) -> Tensor:
    """The inverse of `rotate`."""
    dim = x.shape[-1]
    return x.double() @ hadamard(dim, x.device) * signs.double() / dim


def write(kind: str, x: Tensor, signs: Tensor | None) -> Tensor:
    """Encode rows [..., D] as the bytes of K or V, half of a token's content.

    `signs`: of the rotation of int4, as vLLM has it; None: without.
    """
    if kind == "fp16":
        return x.half().contiguous().view(torch.uint8)
    if kind == "fp8":
        limit = torch.finfo(torch.float8_e4m3fn).max
        scaled = (x.half().float() / FP8_SCALE).clamp(-limit, limit)
        return scaled.to(torch.float8_e4m3fn).contiguous().view(torch.uint8)
    if kind == "int8":
        x = x.double()
        scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-6).float()
        rows = _round(x / scale.double()).clamp(-128, 127).to(torch.int8)
        return torch.cat([rows.view(torch.uint8), scale.contiguous().view(torch.uint8)], -1)
    x = x.double() if signs is None else rotate(x, signs)
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp(min=1e-6).float()
    zero = _round(-low / scale.double()).clamp(0, 15)
    rows = (_round(x / scale.double()) + zero).clamp(0, 15).to(torch.uint8)
    bits = (scale.view(torch.int32) & -16) | zero.to(torch.int32)
    packed = rows[..., ::2] | rows[..., 1::2] << 4
    return torch.cat([packed, bits.contiguous().view(torch.uint8)], -1)


def read(kind: str, raw: Tensor, signs: Tensor | None) -> Tensor:
    """Decode the bytes of half of a token's content to float64 [..., D]; `signs` as of `write`."""
    raw = raw.contiguous()
    if kind == "fp16":
        return raw.view(torch.float16).double()
    if kind == "fp8":
        return raw.view(torch.float8_e4m3fn).double() * FP8_SCALE
    rows, scale = raw[..., :-4], raw[..., -4:].contiguous()
    if kind == "int8":
        return rows.contiguous().view(torch.int8).double() * scale.view(torch.float32).double()
    bits = scale.view(torch.int32)
    values = torch.stack([rows & 15, rows >> 4], -1).flatten(-2).double() - (bits & 15).double()
    values = values * (bits & -16).view(torch.float32).double()
    return values if signs is None else unrotate(values, signs)


def attention(
    kind: str,
    q: Tensor,
    cache: Tensor,
    block_table: Tensor,
    cu: list[int],
    lengths: list[int],
    signs: Tensor,
    scale: float,
) -> Tensor:
    """Causal attention of the last tokens of each sequence, float64; NaN outside of them."""
    kv_heads, block_size = cache.shape[1:3]
    out = torch.full(q.shape, torch.nan, dtype=torch.float64, device=q.device)
    group = q.shape[1] // kv_heads
    for n, length in enumerate(lengths):
        tokens = cu[n + 1] - cu[n]
        if not tokens:
            continue
        pages = block_table[n, : -(-length // block_size)].long()
        raw = cache.view(torch.uint8)[pages].transpose(1, 2).flatten(0, 1)[:length]
        k, v = (read(kind, half, signs) for half in raw.chunk(2, dim=-1))  # [keys, Hkv, D]
        rows = q[cu[n] : cu[n + 1]].double().unflatten(1, (kv_heads, group))
        scores = torch.einsum("thgd,khd->htgk", rows, k) * scale
        seen = torch.arange(length, device=q.device) < (
            torch.arange(tokens, device=q.device)[:, None] + length - tokens + 1
        )
        weights = scores.masked_fill(~seen[None, :, None], -torch.inf).softmax(-1)
        out[cu[n] : cu[n + 1]] = torch.einsum("htgk,khd->thgd", weights, v).flatten(1, 2)
    return out
