"""Gated DeltaNet in float64, one token at a time: the reference for every kernel.

Shapes as in csrc/include/caovan_sm75.h; sequences are packed, `cu_seqlens` is a list of integers.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def gates(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Log decay and beta, float64 [T, Hv], from the raw a, b."""
    g = -a_log.double().exp() * torch.nn.functional.softplus(a.double() + dt_bias.double())
    return g, b.double().sigmoid()


def l2norm(x: Tensor) -> Tensor:
    x = x.double()
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    scale: float,
    keep: int = 1,
) -> tuple[Tensor, list[Tensor]]:
    """One sequence, float64: out [T, Hv, Dv], states [Hv, Dv, Dk] after the last `keep` tokens.

    q, k: [T, Hk, Dk]; v: [T, Hv, Dv]; g, beta: [T, Hv]; state: [Hv, Dv, Dk].
    """
    group = v.shape[1] // q.shape[1]
    q = q.double().repeat_interleave(group, 1)[..., None] * scale
    k = k.double().repeat_interleave(group, 1)[..., None]
    v, beta, decay = (
        v.double()[..., None],
        beta.double()[..., None, None],
        g.double().exp()[..., None, None],
    )
    state, out, states = state.double(), torch.empty_like(v), []
    for t in range(v.shape[0]):
        state = state * decay[t]
        u = beta[t] * (v[t] - state @ k[t])
        state = torch.baddbmm(state, u, k[t].mT)
        out[t] = state @ q[t]
        states = [*states, state][-keep:]
    return out[..., 0], states


def prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: list[int],
    initial: list[Tensor],
    scale: float,
) -> tuple[Tensor, list[Tensor]]:
    """Packed sequences: out [T, Hv, Dv] (NaN outside every sequence), each one's final state."""
    out = torch.full(v.shape, torch.nan, dtype=torch.float64, device=v.device)
    final = []
    for n, state in enumerate(initial):
        rows = slice(cu_seqlens[n], cu_seqlens[n + 1])
        out[rows], states = recurrence(q[rows], k[rows], v[rows], g[rows], beta[rows], state, scale)
        final.append(states[-1] if states else state.double())
    return out, final


def conv(history: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """SiLU(causal conv) with vLLM's rounding: products and output in fp16, sum in fp32.

    history: [channels, 3], the preceding inputs; x: [T, channels]; weight: [channels, 4].
    """
    inputs = torch.cat([history.T, x])
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    if bias is not None:
        out += bias.float()
    for w in range(4):
        out += (inputs[w : w + x.shape[0]] * weight[:, w]).float()
    return (out / (1 + (-out).exp())).half()
