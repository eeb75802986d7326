"""One Gated DeltaNet layer's core on our kernels, from vLLM's metadata (0.21 to 0.33: same fields).

Everything happens on vLLM's own cache slots: no gather, no scatter, no host synchronisation.
"""

from __future__ import annotations

import collections

import torch

from . import launch, ops  # noqa: F401  (registers torch.ops.caovan)

Tensor = torch.Tensor

counts: collections.Counter[tuple[str, str]] = collections.Counter()  # (layer, kernel) -> calls

_workspaces: dict[torch.device, Tensor] = {}
_counters: dict[torch.device, Tensor] = {}


def workspace(device: torch.device, size: int) -> Tensor:
    """Prefill scratch of at least `size` bytes, shared by a device's layers, grown when needed."""
    if device not in _workspaces or _workspaces[device].numel() < size:
        _workspaces[device] = torch.empty(size, dtype=torch.uint8, device=device)
    return _workspaces[device]


def counters(device: torch.device, size: int) -> Tensor:
    """At least `size` zeroed decode counters; the calls of a device must not overlap."""
    if device not in _counters or _counters[device].numel() < size:
        _counters[device] = torch.zeros(size, dtype=torch.int32, device=device)
    return _counters[device]


def warm_up(layer, mixed_qkv: Tensor, max_sequences: int) -> None:
    """In vLLM's memory profile: load the kernels, take the scratch memory the real batches will."""
    device = mixed_qkv.device
    launch.prepare(device)
    k_heads, v_heads = layer.num_k_heads // layer.tp_size, layer.num_v_heads // layer.tp_size
    workspace(
        device,
        launch.shared_library().prefill_workspace_bytes(mixed_qkv.shape[0], max_sequences, v_heads),
    )
    counters(device, 2 * max_sequences * k_heads)


def cache_problem(layer, conv_state: Tensor) -> str | None:
    """What of a layer's caches, allocated after it was built, the kernels cannot use, or None."""
    state = layer.kv_cache[1]
    if state.dtype is not torch.float32 or conv_state.dtype is not torch.float16:
        return f"the caches are {conv_state.dtype} and {state.dtype}, not float16 and float32"
    inner = (layer.num_v_heads // layer.tp_size, layer.head_v_dim, layer.head_k_dim)
    if state.shape[1:] != inner or state.stride()[1:] != (inner[1] * inner[2], inner[2], 1):
        return f"the state cache has shape {tuple(state.shape)}, strides {state.stride()}"
    if state.data_ptr() % 16 or state.stride(0) % 4 or conv_state.data_ptr() % 8:
        return "the caches do not start on 16-byte boundaries"
    if conv_state.stride(1) == 1 and (conv_state.stride(0) % 4 or conv_state.stride(2) % 4):
        return f"the conv state's strides are {conv_state.stride()}, not multiples of 4"
    return None


def forward(
    layer, mixed_qkv: Tensor, b: Tensor, a: Tensor, out: Tensor, meta, conv_state: Tensor, conv_fn
) -> None:
    """conv1d and recurrence of one batch.

    mixed_qkv: [tokens, 2 Hk D + Hv D] before the conv; b, a: [tokens, Hv]; out: [tokens, Hv, D];
    meta: GDNAttentionMetadata; conv_state: [slots, channels, columns]; conv_fn: causal_conv1d_fn.
    """
    launch.prepare(mixed_qkv.device)  # done by warm_up, if vLLM profiled its memory
    tokens = meta.num_actual_tokens
    mixed_qkv, b, a = mixed_qkv[:tokens], b[:tokens], a[:tokens]
    if meta.spec_sequence_masks is None:
        _non_spec(layer, mixed_qkv, b, a, out[:tokens], meta, conv_state, conv_fn)
        return
    if not meta.num_prefills and not meta.num_decodes:
        _verify(layer, mixed_qkv, b, a, out[:tokens], meta, conv_state)
        return
    for rows, run in (
        (meta.spec_token_indx, lambda *x: _verify(layer, *x, meta, conv_state)),
        (meta.non_spec_token_indx, lambda *x: _non_spec(layer, *x, meta, conv_state, conv_fn)),
    ):
        part = torch.empty((rows.shape[0], *out.shape[1:]), dtype=out.dtype, device=out.device)
        run(mixed_qkv.index_select(0, rows), b.index_select(0, rows), a.index_select(0, rows), part)
        out.index_copy_(0, rows, part)


def _verify(
    layer, qkv: Tensor, b: Tensor, a: Tensor, out: Tensor, meta, conv_state: Tensor
) -> None:
    """The drafts of each sequence: state after every token, to its own slot."""
    counts[layer.prefix, "verify"] += 1
    _decode(
        layer,
        qkv,
        b,
        a,
        out,
        conv_state,
        meta.spec_state_indices_tensor,
        meta.spec_query_start_loc,
        meta.num_accepted_tokens,
        meta.num_spec_decodes,
    )


def _non_spec(
    layer, qkv: Tensor, b: Tensor, a: Tensor, out: Tensor, meta, conv_state: Tensor, conv_fn
) -> None:
    if not meta.num_prefills:
        counts[layer.prefix, "decode"] += 1
        _decode(
            layer,
            qkv,
            b,
            a,
            out,
            conv_state,
            meta.non_spec_state_indices_tensor,
            None,
            None,
            qkv.shape[0],
        )
        return
    counts[layer.prefix, "prefill"] += 1
    conv = layer.conv1d
    x = conv_fn(
        qkv.transpose(0, 1),
        conv.weight.view(conv.weight.size(0), conv.weight.size(2)),
        conv.bias,
        activation=layer.activation,
        conv_states=conv_state,
        has_initial_state=meta.has_initial_state,
        cache_indices=meta.non_spec_state_indices_tensor,
        query_start_loc=meta.non_spec_query_start_loc,
        metadata=meta,
    ).transpose(0, 1)
    if x.stride(1) != 1:
        x = x.contiguous()
    keys, values = layer.key_dim // layer.tp_size, layer.value_dim // layer.tp_size
    q, k, v = (
        part.unflatten(1, (-1, layer.head_k_dim)) for part in x.split([keys, keys, values], 1)
    )
    cu = meta.non_spec_query_start_loc
    size = launch.shared_library().prefill_workspace_bytes(x.shape[0], cu.shape[0] - 1, v.shape[1])
    torch.ops.caovan.gdn_prefill_(
        q,
        k,
        v,
        a,
        b,
        layer.A_log,
        layer.dt_bias,
        cu,
        meta.non_spec_state_indices_tensor,
        meta.has_initial_state,
        layer.kv_cache[1],
        out,
        workspace(x.device, size),
        layer.head_k_dim**-0.5,
    )


def _decode(
    layer,
    qkv: Tensor,
    b: Tensor,
    a: Tensor,
    out: Tensor,
    conv_state: Tensor,
    slots: Tensor,
    cu_seqlens: Tensor | None,
    num_accepted: Tensor | None,
    sequences: int,
) -> None:
    conv = layer.conv1d
    torch.ops.caovan.gdn_decode_(
        qkv,
        a,
        b,
        layer.A_log,
        layer.dt_bias,
        conv.weight.view(conv.weight.size(0), conv.weight.size(2)),
        conv.bias,
        slots,
        cu_seqlens,
        num_accepted,
        conv_state,
        layer.kv_cache[1],
        out,
        counters(qkv.device, 2 * sequences * (layer.num_k_heads // layer.tp_size)),
        layer.head_k_dim**-0.5,
        sequences,
    )
