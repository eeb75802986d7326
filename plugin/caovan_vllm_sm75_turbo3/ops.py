"""The kernels as torch operators, with schemas and fakes: torch.compile and graphs see them.

torch.ops.caovan.gdn_prefill    functional: a new output and a new final state
torch.ops.caovan.gdn_prefill_   in place on a state cache with slots, gates and norms fused
torch.ops.caovan.gdn_decode_    in place on conv and state caches
torch.ops.caovan.lm_head        functional: logits from int8 weights, without a GPU too
"""

from __future__ import annotations

import torch

from . import launch, lm_head

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
    "gdn_decode_(Tensor qkv, Tensor a, Tensor b, Tensor(a!) out, Tensor a_log, Tensor dt_bias, "
    "Tensor conv_weight, Tensor? conv_bias, Tensor(b!) conv_state, Tensor(c!) state, "
    "Tensor slots, Tensor? cu_seqlens, Tensor? num_accepted, Tensor(d!) counters, "
    "float scale, int sequences) -> ()"
)
_library.define("lm_head(Tensor x, Tensor weight, Tensor scale) -> Tensor")


def _results(v: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate the output and the final state of gdn_prefill."""
    return v.new_empty(v.shape), initial_state.new_empty(initial_state.shape)


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
    out, final = _results(v, initial_state)
    final.copy_(initial_state)
    launch.prefill(
        launch.PrefillCall(
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
    )
    return out, final


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
        launch.PrefillCall(
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
        ),
        workspace,
    )


_library.impl("gdn_prefill", _prefill, "CUDA")
_library.impl("gdn_prefill_", _prefill_inplace, "CUDA")
_library.impl("gdn_decode_", lambda *args: launch.decode(launch.DecodeCall(*args)), "CUDA")
_library.impl("lm_head", lm_head.multiply, "CUDA")
_library.impl("lm_head", lm_head.dequantised, "CPU")
torch.library.register_fake(
    "caovan::gdn_prefill",
    lambda q, k, v, g, beta, initial_state, *_: _results(v, initial_state),
    lib=_library,
)
torch.library.register_fake("caovan::gdn_prefill_", lambda *args: None, lib=_library)
torch.library.register_fake("caovan::gdn_decode_", lambda *args: None, lib=_library)
torch.library.register_fake(
    "caovan::lm_head",
    lambda x, weight, scale: x.new_empty(x.shape[0], weight.shape[0]),
    lib=_library,
)
