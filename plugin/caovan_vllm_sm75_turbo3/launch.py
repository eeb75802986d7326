"""Launch kernels on tensors: the bridge between torch and the C interface.

Shapes: T tokens, N sequences, Hk and Hv heads, D head size, S slots. Nothing here synchronises with
the device, so every call may be captured in a CUDA graph once `prepare` has run.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from . import library
from .library import AttentionArgs, DecodeArgs, KvWriteArgs, PrefillArgs

Tensor = torch.Tensor


@functools.cache
def shared_library() -> library.Library:
    """The library, loaded once per process."""
    return library.load()


@functools.cache
def prepare(device: torch.device) -> None:
    """Load the kernels on `device`."""
    with torch.cuda.device(device):
        shared_library().prepare()


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _expect(name: str, tensor: Tensor, dtype: torch.dtype, *inner: int) -> None:
    """Check that `tensor` has this dtype and these contiguous trailing dimensions."""
    if (
        tensor.dtype is dtype and tensor.shape[-len(inner) :] == inner and tensor.is_contiguous()
    ):  # the usual case; this runs once per layer and step, so microseconds count
        return
    if tensor.dtype is not dtype:
        raise ValueError(f"cannot use {name} of {tensor.dtype}: the kernel expects {dtype}")
    packed, stride = tensor.shape[-len(inner) :] == inner, 1
    for axis, size in enumerate(reversed(inner), 1):
        packed = packed and (size == 1 or tensor.stride(-axis) == stride)
        stride *= size
    if not packed:
        raise ValueError(
            f"cannot use {name} of shape {tuple(tensor.shape)}, strides {tensor.stride()}: "
            f"its last dimensions must be {inner}, contiguous"
        )


def _expect_rows(rows: int, **tensors: Tensor | None) -> None:
    """Check that every tensor has at least `rows` rows, which the kernels read."""
    for name, x in tensors.items():
        if x is not None and x.shape[0] < rows:
            raise ValueError(
                f"cannot use {name} of shape {tuple(x.shape)}: the kernel reads {rows} rows"
            )


def _expect_ints(rows: int, **tensors: Tensor | None) -> None:
    """Check that every tensor is int32, has at least `rows` rows, and that each row is contiguous.

    Only in `slots` may rows be strided, because the kernels take its stride.
    """
    for name, x in tensors.items():
        if x is None:
            continue
        if x.dtype is not torch.int32:
            raise ValueError(f"cannot use {name} of {x.dtype}: the kernel expects int32")
        if x.stride(-1) != 1 and (x.dim() > 1 or name != "slots"):
            raise ValueError(f"cannot use {name} of strides {x.stride()}: rows must be contiguous")
    _expect_rows(rows, **tensors)


def _expect_columns(conv_state: Tensor, columns: int) -> None:
    """Check that a slot of the conv state has room for the inputs it must keep."""
    if conv_state.shape[2] < columns:
        raise ValueError(
            f"cannot keep {columns} inputs in {conv_state.shape[2]} columns of conv state"
        )


def check_gates(a_log: Tensor, dt_bias: Tensor, v_heads: int) -> None:
    """Check that the gates' parameters match the kernels. Raises ValueError."""
    _expect("a_log", a_log, torch.float32, v_heads)
    half = dt_bias.dtype is torch.float16
    _expect("dt_bias", dt_bias, torch.float16 if half else torch.float32, v_heads)


def check_conv(weight: Tensor, bias: Tensor | None, channels: int) -> None:
    """Check that the convolution's parameters match the kernels. Raises ValueError."""
    _expect("conv_weight", weight, torch.float16, channels, 4)
    if bias is not None:
        _expect("conv_bias", bias, torch.float16, channels)


def check_caches(
    conv_state: Tensor, state: Tensor, channels: int, v_heads: int, dim: int, columns: int
) -> None:
    """Check that the kernels can read and write the caches in place. Raises ValueError.

    conv_state: float16 [S, channels, at least `columns`], any strides; state: float32 [S, Hv, D,
    D], each slot contiguous and aligned to 16 bytes.
    """
    _expect("state", state, torch.float32, v_heads, dim, dim)
    if state.data_ptr() % 16 or state.stride(0) % 4:
        raise ValueError(
            f"cannot use a state of strides {state.stride()} at {state.data_ptr():#x}: "
            "slots must start on 16-byte boundaries"
        )
    slots = state.shape[0]
    if conv_state.dtype is not torch.float16 or conv_state.shape[:-1] != (slots, channels):
        raise ValueError(
            f"cannot use a conv state of {conv_state.dtype}, shape {tuple(conv_state.shape)}: "
            f"the kernel expects float16 [{slots}, {channels}, columns]"
        )
    _expect_columns(conv_state, columns)
    if conv_state.data_ptr() % 8 or (
        conv_state.stride(1) == 1 and (conv_state.stride(0) % 4 or conv_state.stride(2) % 4)
    ):
        raise ValueError(
            f"cannot use a conv state of strides {conv_state.stride()} at "
            f"{conv_state.data_ptr():#x}: columns must start on 8-byte boundaries"
        )


def _dt_bias_flag(dt_bias: Tensor) -> int:
    return library.DT_BIAS_HALF if dt_bias.dtype is torch.float16 else 0


class PrefillCall(NamedTuple):
    """The tensors of a prefill.

    q, k: float16 [T, Hk, Dk]; v, out: float16 [T, Hv, Dv]; g, beta: float32 [T, Hv], or with a_log
    (float32 [Hv]) and dt_bias the raw float16 a, b; cu_seqlens: int32 [N + 1]; states: float32 [S,
    Hv, Dv, Dk]; slots: int32 [N]; has_initial_state: bool [N].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    out: Tensor
    cu_seqlens: Tensor
    initial_state: Tensor | None
    final_state: Tensor | None
    slots: Tensor | None
    has_initial_state: Tensor | None
    scale: float
    l2norm: bool
    null_slot: int
    a_log: Tensor | None = None
    dt_bias: Tensor | None = None


def prefill_args(call: PrefillCall) -> PrefillArgs:
    """Check the tensors of a prefill and convert them to the library's arguments. Raises
    ValueError."""
    (tokens, k_heads, k_dim), (v_heads, v_dim) = call.q.shape, call.v.shape[1:]
    for name, x in (("q", call.q), ("k", call.k)):
        _expect(name, x, torch.float16, k_heads, k_dim)
    for name, x in (("v", call.v), ("out", call.out)):
        _expect(name, x, torch.float16, v_heads, v_dim)
    for name, x in (("g", call.g), ("beta", call.beta)):
        _expect(name, x, torch.float32 if call.a_log is None else torch.float16, v_heads)
    _expect_rows(tokens, k=call.k, v=call.v, g=call.g, beta=call.beta, out=call.out)
    _expect("cu_seqlens", call.cu_seqlens, torch.int32, call.cu_seqlens.shape[0])
    sequences = call.cu_seqlens.shape[0] - 1
    states = [state for state in (call.initial_state, call.final_state) if state is not None]
    for state in states:
        _expect("state", state, torch.float32, v_heads, v_dim, k_dim)
        if state.stride(0) != states[0].stride(0) or state.shape != states[0].shape:
            raise ValueError("cannot use initial and final states of different layouts")
    if call.slots is None:
        _expect_rows(sequences, initial_state=call.initial_state, final_state=call.final_state)
    elif call.slots.dtype is not torch.int32:
        raise ValueError(f"cannot use slots of {call.slots.dtype}: the kernel expects int32")
    _expect_rows(sequences, slots=call.slots, has_initial_state=call.has_initial_state)
    if call.has_initial_state is not None:
        _expect(
            "has_initial_state", call.has_initial_state, torch.bool, call.has_initial_state.shape[0]
        )
    flags = library.L2NORM if call.l2norm else 0
    if call.a_log is not None:
        assert call.dt_bias is not None
        check_gates(call.a_log, call.dt_bias, v_heads)
        flags |= library.GATES | _dt_bias_flag(call.dt_bias)
    return PrefillArgs(
        struct_size=library.ctypes.sizeof(PrefillArgs),
        flags=flags,
        tokens=tokens,
        sequences=sequences,
        k_heads=k_heads,
        v_heads=v_heads,
        head_k_dim=k_dim,
        head_v_dim=v_dim,
        num_slots=states[0].shape[0] if states else 1,
        null_slot=call.null_slot,
        scale=call.scale,
        q=call.q.data_ptr(),
        k=call.k.data_ptr(),
        v=call.v.data_ptr(),
        g=call.g.data_ptr(),
        beta=call.beta.data_ptr(),
        out=call.out.data_ptr(),
        q_stride=call.q.stride(0),
        k_stride=call.k.stride(0),
        v_stride=call.v.stride(0),
        g_stride=call.g.stride(0),
        beta_stride=call.beta.stride(0),
        out_stride=call.out.stride(0),
        a_log=_pointer(call.a_log),
        dt_bias=_pointer(call.dt_bias),
        cu_seqlens=call.cu_seqlens.data_ptr(),
        initial_state=_pointer(call.initial_state),
        final_state=_pointer(call.final_state),
        state_stride=states[0].stride(0) if states else 0,
        slots=_pointer(call.slots),
        slots_stride=1 if call.slots is None else call.slots.stride(0),
        has_initial_state=_pointer(call.has_initial_state),
    )


def prefill(call: PrefillCall, workspace: Tensor | None = None) -> None:
    """Chunked prefill. `workspace`: bytes on the device, reusable. Raises ValueError or
    KernelError."""
    args = prefill_args(call)
    lib = shared_library()
    needed = lib.prefill_workspace_bytes(args.tokens, args.sequences, args.v_heads)
    if workspace is None:
        workspace = torch.empty(needed, dtype=torch.uint8, device=call.q.device)
    stream = torch.cuda.current_stream(call.q.device).cuda_stream
    lib.prefill(args, workspace.data_ptr(), workspace.numel(), stream)


def recurrent(call: PrefillCall) -> None:
    """The same function, one token at a time. Raises ValueError or KernelError."""
    stream = torch.cuda.current_stream(call.q.device).cuda_stream
    shared_library().recurrent(prefill_args(call), stream)


class DecodeCall(NamedTuple):
    """The tensors of a decode step.

    qkv: float16 [T, 2 Hk D + Hv D]; a, b: float16 [T, Hv]; out: float16 [T, Hv, D]; conv_weight:
    float16 [channels, 4]; conv_state: float16 [S, channels, columns], any strides; state: float32
    [S, Hv, D, D], updated in place; slots: int32 [>= N] or [>= N, tokens], distinct between
    sequences except for the null slot (see the library's header); cu_seqlens: int32, of which the
    first N + 1 are used, None: one token each; num_accepted: int32 [>= N] or None; counters: int32,
    zero, at least 2 N Hk; sequences: N.
    """

    qkv: Tensor
    a: Tensor
    b: Tensor
    out: Tensor
    a_log: Tensor
    dt_bias: Tensor
    conv_weight: Tensor
    conv_bias: Tensor | None
    conv_state: Tensor
    state: Tensor
    slots: Tensor
    cu_seqlens: Tensor | None
    num_accepted: Tensor | None
    counters: Tensor
    scale: float
    sequences: int


def decode(call: DecodeCall) -> None:
    """Convolution update, gates and recurrence of a few new tokens per sequence, in one launch.

    A layer's parameters and caches, which stay the same between calls, must satisfy `check_gates`,
    `check_conv` and `check_caches`: checking them here would double the time of a call. Raises
    ValueError or KernelError.
    """
    tokens, channels = call.qkv.shape
    v_heads, dim = call.out.shape[1:]
    k_heads = (channels - v_heads * dim) // (2 * dim)
    max_tokens = 1 if call.slots.dim() == 1 else call.slots.shape[1]
    _expect("qkv", call.qkv, torch.float16, 2 * k_heads * dim + v_heads * dim)
    _expect("out", call.out, torch.float16, v_heads, dim)
    _expect("a", call.a, torch.float16, v_heads)
    _expect("b", call.b, torch.float16, v_heads)
    _expect_rows(tokens, a=call.a, b=call.b, out=call.out)
    _expect_columns(call.conv_state, 2 + max_tokens)
    _expect_ints(call.sequences, slots=call.slots, num_accepted=call.num_accepted)
    if call.cu_seqlens is not None:
        _expect_ints(call.sequences + 1, cu_seqlens=call.cu_seqlens)
    elif tokens < call.sequences:
        raise ValueError(
            f"cannot split {tokens} tokens into {call.sequences} sequences of one token each"
        )
    _expect_ints(2 * call.sequences * k_heads, counters=call.counters)
    args = DecodeArgs(
        struct_size=library.ctypes.sizeof(DecodeArgs),
        flags=_dt_bias_flag(call.dt_bias),
        sequences=call.sequences,
        max_tokens=max_tokens,
        k_heads=k_heads,
        v_heads=v_heads,
        head_dim=dim,
        num_slots=call.state.shape[0],
        scale=call.scale,
        conv_width=4,
        qkv=call.qkv.data_ptr(),
        a=call.a.data_ptr(),
        b=call.b.data_ptr(),
        out=call.out.data_ptr(),
        qkv_stride=call.qkv.stride(0),
        a_stride=call.a.stride(0),
        b_stride=call.b.stride(0),
        out_stride=call.out.stride(0),
        a_log=call.a_log.data_ptr(),
        dt_bias=call.dt_bias.data_ptr(),
        conv_weight=call.conv_weight.data_ptr(),
        conv_bias=_pointer(call.conv_bias),
        conv_state=call.conv_state.data_ptr(),
        conv_slot_stride=call.conv_state.stride(0),
        conv_channel_stride=call.conv_state.stride(1),
        conv_column_stride=call.conv_state.stride(2),
        cu_seqlens=_pointer(call.cu_seqlens),
        state=call.state.data_ptr(),
        state_stride=call.state.stride(0),
        slots=call.slots.data_ptr(),
        slots_stride=call.slots.stride(0),
        num_accepted=_pointer(call.num_accepted),
        counters=call.counters.data_ptr(),
    )
    shared_library().decode(args, torch.cuda.current_stream(call.qkv.device).cuda_stream)


class CacheLayout(NamedTuple):
    """Location of a paged cache's rows: addresses in block 0, strides in bytes."""

    format: int
    k: int
    v: int
    k_scale: int
    v_scale: int
    block_stride: int
    token_stride: int
    head_stride: int


class Scales(NamedTuple):
    """The scales of an fp8 cache's keys and values: float32, one element each, on the device."""

    k: Tensor
    v: Tensor


def cache_layout(
    cache: Tensor, dim: int, signs: Tensor | None, scales: Scales | None = None
) -> CacheLayout:
    """The layout of [blocks, Hkv, block size, content] in vLLM's Triton attention.

    Any strides; content is float16 K and V (2 D); or float8_e4m3fn K and V (2 D) with `scales`; or
    int8 K, its float32 scale, V, its scale (2 (D + 4)); or the same in uint8 with two values per
    byte (2 (D / 2 + 4)), rotated by `signs`. Raises ValueError.
    """
    formats = {
        torch.float16: (library.KV_HALF, 2 * dim, 0),
        torch.int8: (library.KV_INT8, dim, 4),
        torch.uint8: (library.KV_INT4, dim // 2, 4),
        torch.float8_e4m3fn: (library.KV_FP8, dim, 0),
    }
    if cache.dtype not in formats:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in formats)
        raise ValueError(f"cannot use a cache of {cache.dtype}: one of {known} is read")
    format_, row, scale_bytes = formats[cache.dtype]
    size = cache.element_size()
    content = cache.shape[-1]
    if content * size != 2 * (row + scale_bytes) or cache.stride(-1) != 1:
        raise ValueError(
            f"cannot use a cache of shape {tuple(cache.shape)}, strides {cache.stride()}: a token "
            f"and head of {dim} has {2 * (row + scale_bytes)} bytes, contiguous"
        )
    if format_ == library.KV_INT4:
        if signs is None:
            raise ValueError("cannot use an int4 cache without the signs it was rotated with")
        _expect("signs", signs, torch.float32, dim)
    k = cache.data_ptr()
    v = k + row + scale_bytes
    k_scale, v_scale = k + row, v + row
    if format_ == library.KV_FP8:
        if scales is None:
            raise ValueError("cannot use an fp8 cache without the scales of its keys and values")
        for scale in scales:
            if scale.dtype is not torch.float32 or scale.numel() != 1:
                raise ValueError(
                    f"cannot use a scale of {scale.dtype}, shape {tuple(scale.shape)}: "
                    "the kernel takes one float32"
                )
        k_scale, v_scale = (scale.data_ptr() for scale in scales)
    block, head, token = (stride * size for stride in cache.stride()[:3])
    boundary = 4 if scale_bytes else 16
    if any(at % boundary for at in (k, v, block, head, token)) or cache.shape[2] % 16:
        raise ValueError(
            f"cannot use a cache of strides {cache.stride()} at {k:#x} with blocks of "
            f"{cache.shape[2]} tokens: rows must start on {boundary}-byte boundaries, and blocks "
            "have a multiple of 16 tokens"
        )
    return CacheLayout(format_, k, v, k_scale, v_scale, block, token, head)


def attention_args(
    q: Tensor,
    out: Tensor,
    cache: Tensor,
    block_table: Tensor,
    cu_seqlens: Tensor,
    kv_lengths: Tensor,
    signs: Tensor | None,
    *,
    max_tokens: int,
    segments: int = 1,
    scale: float,
    scales: Scales | None = None,
) -> AttentionArgs:
    """Check and convert the arguments of `attention_decode` and `attention_prefill`.

    q, out: float16 [T, H, D]; cache: see `cache_layout`; block_table: [N, ...]; cu_seqlens: [N +
    1]; kv_lengths: [N]; `scales`: of an fp8 cache. Raises ValueError.
    """
    tokens, heads, dim = q.shape
    _expect("q", q, torch.float16, heads, dim)
    _expect("out", out, torch.float16, heads, dim)
    _expect_rows(tokens, out=out)
    sequences = cu_seqlens.shape[0] - 1
    _expect_ints(sequences, block_table=block_table, kv_lengths=kv_lengths)
    _expect_ints(sequences + 1, cu_seqlens=cu_seqlens)
    layout = cache_layout(cache, dim, signs, scales)
    return AttentionArgs(
        struct_size=library.ctypes.sizeof(AttentionArgs),
        sequences=sequences,
        max_tokens=max_tokens,
        heads=heads,
        kv_heads=cache.shape[1],
        head_dim=dim,
        block_size=cache.shape[2],
        segments=segments,
        scale=scale,
        q=q.data_ptr(),
        out=out.data_ptr(),
        q_stride=q.stride(0),
        out_stride=out.stride(0),
        block_table=block_table.data_ptr(),
        block_table_stride=block_table.stride(0),
        cu_seqlens=cu_seqlens.data_ptr(),
        kv_lengths=kv_lengths.data_ptr(),
        signs=_pointer(signs),
        **layout._asdict(),
    )


def attention_decode(args: AttentionArgs, workspace: Tensor) -> None:
    """Attend to the cache; the caller keeps the tensors alive."""
    shared_library().attention_decode(
        args,
        workspace.data_ptr(),
        workspace.numel() * workspace.element_size(),
        torch.cuda.current_stream(workspace.device).cuda_stream,
    )


def attention_prefill(args: AttentionArgs, device: torch.device) -> None:
    """Like `attention_decode`, for many new tokens, as in a prefill."""
    shared_library().attention_prefill(args, torch.cuda.current_stream(device).cuda_stream)


def kv_write(
    k: Tensor,
    v: Tensor,
    cache: Tensor,
    slots: Tensor,
    signs: Tensor | None = None,
    scales: Scales | None = None,
) -> None:
    """Write k, v, float16 [T, Hkv, D], into a paged cache (`cache_layout`) at int64 slots [T]."""
    tokens, heads, dim = k.shape
    _expect("k", k, torch.float16, heads, dim)
    _expect("v", v, torch.float16, heads, dim)
    _expect("slots", slots, torch.int64, tokens)
    _expect_rows(tokens, v=v)
    if cache.shape[1] != heads:
        raise ValueError(f"cannot write {heads} KV heads into a cache of {cache.shape[1]}")
    layout = cache_layout(cache, dim, signs, scales)
    args = KvWriteArgs(
        struct_size=library.ctypes.sizeof(KvWriteArgs),
        format=layout.format,
        tokens=tokens,
        kv_heads=heads,
        head_dim=dim,
        block_size=cache.shape[2],
        k=k.data_ptr(),
        v=v.data_ptr(),
        k_stride=k.stride(0),
        v_stride=v.stride(0),
        k_cache=layout.k,
        v_cache=layout.v,
        k_scale=layout.k_scale,
        v_scale=layout.v_scale,
        block_stride=layout.block_stride,
        token_stride=layout.token_stride,
        head_stride=layout.head_stride,
        slots=slots.data_ptr(),
        signs=_pointer(signs),
    )
    shared_library().kv_write(args, torch.cuda.current_stream(k.device).cuda_stream)
