"""Run an attention layer on caovan's kernels, over the paged cache of vLLM's Triton attention.

The cache remains vLLM's and is read and written in place. Nothing here synchronises with the
device, and scratch memory is allocated when a layer is created, so every call may be captured in a
CUDA graph.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch

from . import dispatch, launch, library
from .core import counts

Tensor = torch.Tensor

FP8 = ("fp8", "fp8_e4m3")
FORMATS = {
    **dict.fromkeys(FP8, library.KV_FP8),
    "int8_per_token_head": library.KV_INT8,
    "int4_per_token_head": library.KV_INT4,
}
"""Cache formats by --kv-cache-dtype; otherwise fp16."""
MAX_SCRATCH = 32 << 20
"""Maximum scratch in bytes: vLLM's kernels take batches of more sequences."""
COUNTED = {"decode": "attention", "extend": "attention extend", "prefill": "attention prefill"}

_workspaces: dict[torch.device, list[Tensor]] = {}


class Shape(NamedTuple):
    """The properties that determine how a batch is launched."""

    format: int
    heads: int
    kv_heads: int
    dim: int
    processors: int


@functools.cache
def split(shape: Shape, sequences: int, tokens: int) -> tuple[int, int]:
    """Number of segments into which a batch of this shape is split, and its scratch in bytes."""
    lib, sizes = launch.shared_library(), (shape.heads, shape.kv_heads, shape.dim)
    segments = lib.attention_segments(shape.format, sequences, tokens, *sizes)
    return segments, lib.attention_workspace_bytes(sequences, tokens, *sizes, segments)


class Part(NamedTuple):
    """A launch with the number of segments for its keys; 0 for the prefill kernel."""

    launch: dispatch.Launch
    segments: int


@functools.lru_cache(maxsize=64)  # the layers of one step ask for the same
def parts(shape: Shape, lengths: tuple[int, ...], scratch: int) -> tuple[Part, ...] | None:
    """Launches for sequences with these numbers of query tokens; None if one needs more scratch."""
    found = []
    for one in dispatch.attention_launches(lengths, *shape[1:]):
        if one.kernel == "prefill":
            found.append(Part(one, 0))
            continue
        segments, size = split(shape, one.last - one.first, one.tokens)
        if size <= scratch:
            found.append(Part(one, segments))
        elif one.kernel == "extend":
            found.append(Part(one._replace(kernel="prefill"), 0))
        else:
            return None
    return tuple(found)


def workspace(device: torch.device, size: int) -> Tensor:
    """Scratch of at least `size` bytes, shared by a device's layers.

    Outgrown buffers are kept: a CUDA graph captured earlier writes to them at every replay.
    """
    kept = _workspaces.setdefault(device, [])
    if not kept or kept[-1].numel() < size:
        kept.append(torch.empty(size, dtype=torch.uint8, device=device))
    return kept[-1]


def processors(device: torch.device) -> int:
    """Number of multiprocessors of the card."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


class DecodeAttention:
    """A layer's shape, its scratch memory, and the batches it accepts."""

    def __init__(
        self,
        *,
        heads: int,
        kv_heads: int,
        dim: int,
        scale: float,
        cache: str,
        signs: Tensor | None,
        sequences: int,
        device: torch.device,
        prompts: bool = True,
    ) -> None:
        """`cache`: --kv-cache-dtype; `signs`: of an int4 cache; `sequences`: maximum per batch;
        `prompts`: whether to accept batches with more tokens per sequence than a verification has.

        Loads the kernels. Raises LibraryError, KernelError or ValueError.
        """
        launch.prepare(device)
        self.shape = Shape(
            FORMATS.get(cache, library.KV_HALF), heads, kv_heads, dim, processors(device)
        )
        self.scale, self.signs, self.prompts, self.device = scale, signs, prompts, device
        sizes = [split(self.shape, *batch)[1] for batch in self._batches(sequences)]
        fitting = [size for size in sizes if size <= MAX_SCRATCH]
        if not fitting:
            raise ValueError(
                f"one sequence of {heads} heads takes {min(sizes) >> 20} MiB of scratch memory, "
                f"more than the {MAX_SCRATCH >> 20} MiB that attention may use on a card"
            )
        self.workspace = workspace(device, max(fitting))

    def _batches(self, sequences: int) -> Iterator[tuple[int, int]]:
        """Sequences and tokens of the batches that the scratch memory must suffice for."""
        for tokens in range(1, dispatch.MAX_QUERY_TOKENS + 1):
            yield from ((n, tokens) for n in range(1, sequences + 1))
        if self.prompts:
            yield from ((1, 1 << n) for n in range(4, 10))

    def parts(self, query: Tensor, output_scale: Tensor | None, meta) -> tuple[Part, ...] | None:
        """Launches for this batch; None leaves it to vLLM.

        Sequences of up to eight query tokens use one launch for the largest number, whatever graph
        it is captured in. Others are grouped by the lengths from
        `Sm75TritonAttentionMetadataBuilder`, which only provides them outside of graphs.
        """
        if not (
            meta.causal is True
            and query.dtype is torch.float16
            and output_scale is None
            and meta.mm_prefix_range_tensor is None
            and meta.rswa_prefix_lens is None
        ):
            return None
        sequences, most = meta.seq_lens.shape[0], int(meta.max_query_len)
        if most <= dispatch.MAX_QUERY_TOKENS:
            lengths = (most,) * sequences
        elif self.prompts:
            lengths = getattr(meta, "caovan_query_lengths", None)
            if lengths is None or len(lengths) != sequences:
                return None
        else:
            return None
        return parts(self.shape, lengths, self.workspace.numel())

    def attend(
        self,
        name: str,
        query: Tensor,
        cache: Tensor,
        meta,
        out: Tensor,
        found: tuple[Part, ...],
        scales: launch.Scales | None = None,
    ) -> None:
        """Attend to the cache. query, out: float16 [T, H, D]; cache: [blocks, Hkv, block size,
        content]; `found`: from `parts`; `scales`: of an fp8 cache.

        Raises ValueError for tensors that the kernel would misread, or KernelError.
        """
        _, heads, kv_heads, dim, _ = self.shape
        if cache.shape[1] != kv_heads:
            raise ValueError(
                f"cannot use a cache of shape {tuple(cache.shape)}: "
                f"it must be [blocks, {kv_heads}, ...]"
            )
        cache = self._typed(cache)
        query, out = query.view(-1, heads, dim), out.view(-1, heads, dim)
        for (kernel, first, last, tokens), segments in found:
            args = launch.attention_args(
                query,
                out,
                cache,
                meta.block_table[first:last],
                meta.query_start_loc[first : last + 1],
                meta.seq_lens[first:last],
                self.signs,
                max_tokens=tokens,
                segments=segments,
                scale=self.scale,
                scales=scales,
            )
            if segments:
                launch.attention_decode(args, self.workspace)
            else:
                launch.attention_prefill(args, self.device)
            counts[name, COUNTED[kernel]] += 1

    def _typed(self, cache: Tensor) -> Tensor:
        """The cache by the type of its elements: vLLM's fp8 caches are of bytes, like int4's."""
        return cache.view(torch.float8_e4m3fn) if self.shape.format == library.KV_FP8 else cache

    def write(
        self,
        name: str,
        key: Tensor,
        value: Tensor,
        cache: Tensor,
        slots: Tensor,
        scales: launch.Scales | None = None,
    ) -> None:
        """Write key and value, float16 [T, Hkv, D], into the cache at int64 `slots`; `scales`: of
        an fp8 cache. Raises like `attend`."""
        tokens = min(key.shape[0], slots.shape[0])
        launch.kv_write(
            key[:tokens].view(-1, self.shape.kv_heads, self.shape.dim),
            value[:tokens].view(-1, self.shape.kv_heads, self.shape.dim),
            self._typed(cache),
            slots[:tokens],
            self.signs,
            scales,
        )
        counts[name, "cache write"] += 1
