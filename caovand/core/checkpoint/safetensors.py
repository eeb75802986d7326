"""Headers of safetensors files: the tensors of a shard, and whether it is complete.

A file is 8 bytes of little-endian header length, a JSON header, then the tensors' bytes.
"""

from __future__ import annotations

import json
import struct
from math import prod
from typing import Any, NamedTuple

LARGEST_HEADER = 100_000_000
BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16,
    "I16": 16, "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "C64": 64, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


class BadShard(Exception):
    """Why this file is not a complete shard."""


class Tensor(NamedTuple):
    """One tensor as its header describes it; `size` in bytes."""

    name: str
    dtype: str
    size: int


class Place(NamedTuple):
    """Where a tensor's bytes are in its file."""

    name: str
    dtype: str
    begin: int
    end: int


def header_length(start: bytes, file_size: int) -> int:
    """The length of the JSON after the first eight bytes, checked against the file's size."""
    if start.startswith(b"version "):
        raise BadShard("it is a Git LFS pointer, not the file itself")
    length = int(struct.unpack("<Q", start)[0]) if len(start) == 8 else 0
    if not 2 <= length <= min(file_size - 8, LARGEST_HEADER):
        raise BadShard(f"its header claims {length} bytes, the file has {file_size}")
    return length


def parse_header(text: bytes, file_size: int) -> list[Tensor]:
    """The tensors of one shard; BadShard if header and file disagree."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise BadShard("its header is not JSON") from None
    if not isinstance(header, dict):
        raise BadShard("its header is not a table of tensors")
    header.pop("__metadata__", None)
    found: list[Tensor] = []
    ranges: list[tuple[int, int]] = []
    sizes: dict[tuple[str, tuple[int, ...]], int | None] = {}  # few shapes, many tensors
    for name, entry in header.items():
        try:
            dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            known = (dtype, shape) in sizes
        except (KeyError, TypeError, ValueError):
            raise BadShard(f'its header does not describe tensor "{name}"') from None
        if not known:
            sizes[dtype, shape] = _size(name, dtype, shape)
        wanted = sizes[dtype, shape]
        numbers = type(begin) is int and type(end) is int
        if not numbers or not 0 <= begin <= end or wanted not in (None, end - begin):
            raise _contradiction(name)
        found.append(Tensor(name, dtype, end - begin))
        ranges.append((begin, end))
    ranges.sort()
    at = 0
    for begin, end in ranges:
        if begin != at:
            raise BadShard("its tensors overlap or leave gaps")
        at = end
    whole = 8 + len(text) + at
    if file_size != whole:
        kind = "truncated" if file_size < whole else "too long"
        raise BadShard(f"it is {kind}: {file_size} bytes, but its header describes {whole}")
    return found


def places(text: bytes, file_size: int) -> list[Place]:
    """Where each tensor of a shard lies; BadShard if header and file disagree."""
    parse_header(text, file_size)
    header = json.loads(text)
    header.pop("__metadata__", None)
    start = 8 + len(text)
    return [
        Place(name, entry["dtype"], *(start + at for at in entry["data_offsets"]))
        for name, entry in header.items()
    ]


def _size(name: str, dtype: str, shape: tuple[Any, ...]) -> int | None:
    """Bytes of a tensor of this type and shape, None for an unknown type."""
    if not all(type(n) is int and n >= 0 for n in shape):
        raise _contradiction(name)
    bits = BITS.get(dtype)
    return (prod(shape) * bits + 7) // 8 if bits else None


def _contradiction(name: str) -> BadShard:
    return BadShard(f'its header contradicts itself about tensor "{name}"')
