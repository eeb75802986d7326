"""The kernels as torch operators, with schemas and fakes: torch.compile and graphs see them.

torch.ops.caovan.gdn_prefill    functional: a new output and a new final state
torch.ops.caovan.gdn_prefill_   in place on a state cache with slots, gates and norms fused
torch.ops.caovan.gdn_decode_    in place on conv and state caches
"""

from __future__ import annotations

import torch

from . import launch

Tensor = torch.Tensor

_library = torch.library.Library("caovan", "DEF")
_library.define(
    "gdn_prefill(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor initial_state, "
    "Tensor cu_seqlens, float scale, bool l2norm) -> (Tensor, Tensor)"
)
_library.define(
    "gdn_prefill_(Tensor q, Tensor k, Tensor v, Tensor a, Tensor b, Tensor a_log, Tensor dt_bias, "
    "Tensor cu_seqlens, Tensor slots, Tensor has_initial_state, Tensor(a!) state, Tensor(b!) out, "
    "Tensor(c!) workspace, float scale) -> ()"
)
_library.define(
    "gdn_decode_(Tensor qkv, Tensor a, Tensor b, Tensor a_log, Tensor dt_bias, Tensor conv_weight, "
    "Tensor? conv_bias, Tensor slots, Tensor? cu_seqlens, Tensor? num_accepted, "
    "Tensor(a!) conv_state, Tensor(b!) state, Tensor(c!) out, Tensor(d!) counters, "
    "float scale, int sequences) -> ()"
)


def _prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    scale: float,
    l2norm: bool,
) -> tuple[Tensor, Tensor]:
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    final = initial_state.clone(memory_format=torch.contiguous_format)
    launch.prefill(
        q,
        k,
        v,
        g,
        beta,
        out,
        cu_seqlens,
        final,
        final,
        None,
        None,
        scale=scale,
        l2norm=l2norm,
        null_slot=-1,
    )
    return out, final


def _prefill_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    scale: float,
    l2norm: bool,
) -> tuple[Tensor, Tensor]:
    return torch.empty(v.shape, dtype=v.dtype, device=v.device), torch.empty(
        initial_state.shape, dtype=initial_state.dtype, device=initial_state.device
    )


def _prefill_inplace(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    slots: Tensor,
    has_initial_state: Tensor,
    state: Tensor,
    out: Tensor,
    workspace: Tensor,
    scale: float,
) -> None:
    launch.prefill(
        q,
        k,
        v,
        a,
        b,
        out,
        cu_seqlens,
        state,
        state,
        slots,
        has_initial_state,
        scale=scale,
        l2norm=True,
        null_slot=0,
        a_log=a_log,
        dt_bias=dt_bias,
        workspace=workspace,
    )


def _decode_inplace(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    slots: Tensor,
    cu_seqlens: Tensor | None,
    num_accepted: Tensor | None,
    conv_state: Tensor,
    state: Tensor,
    out: Tensor,
    counters: Tensor,
    scale: float,
    sequences: int,
) -> None:
    launch.decode(
        qkv,
        a,
        b,
        out,
        a_log,
        dt_bias,
        conv_weight,
        conv_bias,
        conv_state,
        state,
        slots,
        cu_seqlens,
        num_accepted,
        counters,
        scale,
        sequences,
    )


_library.impl("gdn_prefill", _prefill, "CUDA")
_library.impl("gdn_prefill_", _prefill_inplace, "CUDA")
_library.impl("gdn_decode_", _decode_inplace, "CUDA")
torch.library.register_fake("caovan::gdn_prefill", _prefill_fake, lib=_library)
torch.library.register_fake("caovan::gdn_prefill_", lambda *args: None, lib=_library)
torch.library.register_fake("caovan::gdn_decode_", lambda *args: None, lib=_library)
