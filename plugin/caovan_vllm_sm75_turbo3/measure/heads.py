"""lm_heads in float64, synthetic weights like trained ones, and the error of int8 logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Tensor = torch.Tensor


def dequantised(rows: Tensor, scale: Tensor) -> Tensor:
    """The float64 values of int8 [V, K] and scales [V]."""
    return rows.double() * scale.double()[:, None]


def logits(x: Tensor, rows: Tensor, scale: Tensor) -> Tensor:
    """x (scale rows)^T in float64."""
    return x.double() @ rows.double().T * scale.double()


def _disturb(kind: str, x: Tensor, weight: Tensor) -> None:
    """Turn normal numbers into numbers of another kind, in place."""
    if kind == "heavy tails":  # Student's t with two degrees of freedom, truncated
        normal = torch.randn(2, *weight.shape, device=weight.device)
        weight.div_(normal.square().sum(0).sqrt().clamp(min=0.1))
    elif kind == "outlier weights":
        weight[:, ::500] *= 20
    elif kind == "outlier activations":
        x[:, ::500] *= 50
    elif kind == "32 directions":  # most of x and of each row lies in a common small subspace
        basis = torch.randn(32, weight.shape[1], device=weight.device) / 32**0.5
        for rows in (x, weight):
            rows.mul_(0.3).add_(torch.randn(rows.shape[0], 32, device=rows.device) @ basis)


BOUNDS = {
    "normal": (0.01, 0.08),
    "heavy tails": (0.04, 0.4),
    "outlier weights": (0.08, 0.7),
    "outlier activations": (0.01, 0.08),
    "32 directions": (0.003, 0.02),
}
"""Limits on the change of logits by int8, relative to their standard deviation in a row: RMS,
maximum."""


def structured(
    kind: str, *, rows: int, vocabulary: int, hidden: int, device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Return x and a weight [vocabulary, hidden], float16, of one of the kinds in BOUNDS."""
    x = torch.randn(rows, hidden, device=device)
    weight = torch.randn(vocabulary, hidden, device=device) * torch.rand(
        vocabulary, 1, device=device
    ).add(0.5)
    _disturb(kind, x, weight)
    return x.half(), (weight * 0.02).half()


@dataclass(frozen=True)
class Movement:
    """Differences relative to the standard deviation of a row's logits."""

    relative: float
    """Root mean square."""
    largest: float
    top: float
    """Share of the 20 largest logits that stay among the 20 largest, over all rows."""
    first: float
    """Share of rows whose largest logit stays the same."""
    lead: float
    """The largest original lead of a first token that lost its place; 0 if none did."""


def movement(x: Tensor, weight: Tensor, rows: Tensor, scale: Tensor) -> Movement:
    """The change of the logits of x by int8, both in float64."""
    want, got = x.double() @ weight.double().T, logits(x, rows, scale)
    error = (got - want) / want.std(1, keepdim=True)
    ours, theirs = got.topk(20).indices, want.topk(20).indices
    kept = [len(set(a.tolist()) & set(b.tolist())) / 20 for a, b in zip(ours, theirs, strict=True)]
    same = ours[:, 0] == theirs[:, 0]
    best = want.topk(2).values
    leads = ((best[:, 0] - best[:, 1]) / want.std(1))[~same]
    return Movement(
        relative=error.square().mean().sqrt().item(),
        largest=error.abs().max().item(),
        top=sum(kept) / len(kept),
        first=same.double().mean().item(),
        lead=leads.max().item() if leads.numel() else 0.0,
    )
