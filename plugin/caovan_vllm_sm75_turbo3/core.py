"""Run a Gated DeltaNet layer's core on caovan's kernels, from vLLM's metadata (same fields in 0.21
to 0.33).

Everything happens in vLLM's own cache slots: no gather, no scatter, no host synchronisation.
"""

from __future__ import annotations

import collections

import torch

from . import launch, library, ops  # noqa: F401  (ops registers torch.ops.caovan)

Tensor = torch.Tensor

counts: collections.Counter[tuple[str, str]] = collections.Counter()  # (layer, kernel) -> calls

_workspaces: dict[torch.device, Tensor] = {}
_counters: dict[torch.device, list[Tensor]] = collections.defaultdict(list)


def workspace(device: torch.device, size: int) -> Tensor:
    """Prefill scratch of at least `size` bytes, shared by a device's layers and grown on demand."""
    if device not in _workspaces or _workspaces[device].numel() < size:
        _workspaces[device] = torch.empty(size, dtype=torch.uint8, device=device)
    return _workspaces[device]


def counters(device: torch.device, size: int) -> Tensor:
    """At least `size` zeroed decode counters; calls on one device must not overlap.

    Outgrown counters are kept: a CUDA graph captured earlier uses them at every replay.
    """
    kept = _counters[device]
    if not kept or kept[-1].numel() < size:
        kept.append(torch.zeros(size, dtype=torch.int32, device=device))
    return kept[-1]


def warm_up(layer, mixed_qkv: Tensor, max_sequences: int) -> None:
    """Allocate the scratch memory of real batches during vLLM's profiling run, so that it is
    counted."""
    device = mixed_qkv.device
    k_heads, v_heads = layer.num_k_heads // layer.tp_size, layer.num_v_heads // layer.tp_size
    workspace(
        device,
        launch.shared_library().prefill_workspace_bytes(mixed_qkv.shape[0], max_sequences, v_heads),
    )
    counters(device, 2 * max_sequences * k_heads)


def conv_weight(layer) -> Tensor:
    """The layer's [channels, 1, width] as a view [channels, width]."""
    return layer.conv1d.weight.squeeze(1)


def load_refusal(device: torch.device) -> str | None:
    """Load the kernels on `device`; return the reason if that fails, None on success."""
    try:
        launch.prepare(device)
    except (library.LibraryError, library.KernelError) as error:
        return str(error)
    return None


def layer_refusal(layer, device: torch.device, conv_state: Tensor | None = None) -> str | None:
    """The reason why the kernels cannot run `layer` on `device`; None once they are loaded.

    Checks the layer's parameters and, once vLLM has allocated them, its caches. conv_state: [slots,
    channels, columns]; vLLM keeps width - 1 columns plus one per draft token.
    """
    k_heads, v_heads = layer.num_k_heads // layer.tp_size, layer.num_v_heads // layer.tp_size
    dim, columns = layer.head_k_dim, layer.conv_kernel_size - 1 + layer.num_spec
    channels = (2 * k_heads + v_heads) * dim
    try:
        launch.check_gates(layer.A_log, layer.dt_bias, v_heads)
        launch.check_conv(conv_weight(layer), layer.conv1d.bias, channels)
        if conv_state is not None:
            launch.check_caches(conv_state, layer.kv_cache[1], channels, v_heads, dim, columns)
    except ValueError as error:
        return str(error)
    return load_refusal(device)


def forward(
    layer, mixed_qkv: Tensor, b: Tensor, a: Tensor, out: Tensor, meta, conv_state: Tensor, conv_fn
) -> None:
    """Convolution and recurrence of one batch, for a layer that `layer_refusal` accepts.

    mixed_qkv: [tokens, 2 Hk D + Hv D] before the convolution; b, a: [tokens, Hv]; out: [tokens, Hv,
    D]; meta: GDNAttentionMetadata; conv_state: [slots, channels, columns]; conv_fn:
    causal_conv1d_fn.
    """
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
    """Verify each sequence's drafts: the state after every token goes to its own slot."""
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
    x = conv_fn(
        qkv.transpose(0, 1),
        conv_weight(layer),
        layer.conv1d.bias,
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
    torch.ops.caovan.gdn_decode_(
        qkv,
        a,
        b,
        out,
        layer.A_log,
        layer.dt_bias,
        conv_weight(layer),
        layer.conv1d.bias,
        conv_state,
        layer.kv_cache[1],
        slots,
        cu_seqlens,
        num_accepted,
        counters(qkv.device, 2 * sequences * (layer.num_k_heads // layer.tp_size)),
        layer.head_k_dim**-0.5,
        sequences,
    )
