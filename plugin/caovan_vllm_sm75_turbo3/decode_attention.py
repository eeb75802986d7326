"""One attention layer on our kernels, over the paged cache of vLLM's Triton attention.

The cache stays vLLM's, read and written in place. Nothing here synchronises with the device, and
scratch memory is taken when a layer is made: every call may be captured in a CUDA graph.
"""

from __future__ import annotations

import functools
import itertools

import torch

from . import dispatch, launch, library
from .core import counts

Tensor = torch.Tensor

FORMATS = {
    "int8_per_token_head": library.KV_INT8,
    "int4_per_token_head": library.KV_INT4,
}
"""By --kv-cache-dtype; fp16 otherwise."""
MAX_SCRATCH = 32 << 20
"""Bytes: a batch of more sequences than this is enough for is vLLM's."""

_workspaces: dict[torch.device, list[Tensor]] = {}


@functools.cache
def split(
    format_: int, sequences: int, tokens: int, heads: int, kv_heads: int, dim: int
) -> tuple[int, int]:
    """Into how many segments a batch of this shape is split, and the scratch bytes it takes."""
    lib = launch.shared_library()
    segments = lib.attention_segments(format_, sequences, tokens, heads, kv_heads, dim)
    size = lib.attention_workspace_bytes(sequences, tokens, heads, kv_heads, dim, segments)
    return segments, size


def workspace(device: torch.device, size: int) -> Tensor:
    """Scratch of at least `size` bytes, shared by a device's layers.

    Outgrown ones stay: a CUDA graph captured earlier writes to them at every replay.
    """
    kept = _workspaces.setdefault(device, [])
    if not kept or kept[-1].numel() < size:
        kept.append(torch.empty(size, dtype=torch.uint8, device=device))
    return kept[-1]


class DecodeAttention:
    """A layer's shape, its scratch memory, and which batches it takes."""

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
    ) -> None:
        """`cache`: --kv-cache-dtype; `signs`: of an int4 cache; `sequences`: the most of a batch.

        Loads the kernels. Raises LibraryError or KernelError.
        """
        launch.prepare(device)
        self.shape = heads, kv_heads, dim
        self.scale, self.signs = scale, signs
        self.format = FORMATS.get(cache, library.KV_HALF)
        batches = itertools.product(
            range(1, sequences + 1), range(1, dispatch.MAX_QUERY_TOKENS + 1)
        )
        sizes = (split(self.format, *batch, *self.shape)[1] for batch in batches)
        self.workspace = workspace(device, max(size for size in sizes if size <= MAX_SCRATCH))

    def takes(self, query: Tensor, output_scale: Tensor | None, meta) -> bool:
        """Whether a batch is one of decoding and verification that the kernel knows."""
        return (
            meta.max_query_len <= dispatch.MAX_QUERY_TOKENS
            and meta.causal is True
            and query.dtype is torch.float16
            and output_scale is None
            and meta.mm_prefix_range_tensor is None
            and meta.rswa_prefix_lens is None
            and self._split(meta)[1] <= self.workspace.numel()
        )

    def _split(self, meta) -> tuple[int, int]:
        sequences = meta.query_start_loc.shape[0] - 1
        return split(self.format, sequences, int(meta.max_query_len), *self.shape)

    def attend(self, name: str, query: Tensor, cache: Tensor, meta, out: Tensor) -> None:
        """query, out: float16 [T, H, D]; cache: [blocks, Hkv, block size, content].

        Raises ValueError, for tensors that the kernel would misread, or KernelError.
        """
        heads, kv_heads, dim = self.shape
        if cache.shape[1] != kv_heads:
            raise ValueError(f"a cache of shape {tuple(cache.shape)} has not {kv_heads} heads next")
        args = launch.attention_args(
            query.view(-1, heads, dim),
            out.view(-1, heads, dim),
            cache,
            meta.block_table,
            meta.query_start_loc,
            meta.seq_lens,
            self.signs,
            max_tokens=int(meta.max_query_len),  # drafters have a number of numpy
            segments=self._split(meta)[0],
            scale=self.scale,
        )
        launch.attention_decode(args, self.workspace)
        counts[name, "attention"] += 1

    def write(self, name: str, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        """key, value: float16 [T, Hkv, D] into the cache at int64 `slots`. Raises as `attend`."""
        _, kv_heads, dim = self.shape
        tokens = min(key.shape[0], slots.shape[0])
        launch.kv_write(
            key[:tokens].view(-1, kv_heads, dim),
            value[:tokens].view(-1, kv_heads, dim),
            cache,
            slots[:tokens],
            self.signs,
        )
        counts[name, "cache write"] += 1
