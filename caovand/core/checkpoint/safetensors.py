"""Parse headers of safetensors files: a shard's tensors, and whether it is complete.

A file consists of the header length in 8 little-endian bytes, a JSON header and the tensor data.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any, NamedTuple

from caovand.core.checkpoint.budget import POINTER, BadHeader, Budget, TooLarge

MAX_VALUES = 2_000_000  # per header: about nine per tensor
BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16,
    "I16": 16, "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "C64": 64, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


class BadShard(BadHeader):
    """The file is not a complete shard."""


class Tensor(NamedTuple):
    """A tensor as described in its header; `size` in bytes."""

    name: str
    dtype: str
    size: int


class TensorExtent(NamedTuple):
    """Offset and size of a tensor's data in its file."""

    name: str
    dtype: str
    begin: int
    end: int


def header_length(start: bytes, file_size: int) -> int:
    """Read the JSON header's length from the first eight bytes and check it against the file size.

    It may exceed the remaining budget: call `Budget.require` before reading the header.
    """
    if start.startswith(b"version "):
        raise BadShard(POINTER)
    length = int(struct.unpack("<Q", start)[0]) if len(start) == 8 else 0
    if not 2 <= length <= file_size - 8:
        raise BadShard(f"its header claims {length} bytes, the file has {file_size}")
    return length


def parse_header(text: bytes, file_size: int, budget: Budget) -> list[Tensor]:
    """Parse the tensors of one shard; raises BadHeader if header and file disagree."""
    return _tensors(_table(text, budget), len(text), file_size)


def _table(text: bytes, budget: Budget) -> dict[str, Any]:
    """Header entries by tensor name."""
    try:
        header = budget.json(text, MAX_VALUES)
    except TooLarge:
        raise
    except BadHeader:
        raise BadShard("its header is not JSON") from None
    if not isinstance(header, dict):
        raise BadShard("its header is not a JSON object of tensors")
    header.pop("__metadata__", None)
    return header


def _tensors(header: dict[str, Any], length: int, file_size: int) -> list[Tensor]:
    tensors: list[Tensor] = []
    ranges: list[tuple[int, int]] = []
    # there are many tensors but few shapes
    sizes: dict[tuple[str, tuple[int, ...]], int | None] = {}
    for name, entry in header.items():
        try:
            dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            known = (dtype, shape) in sizes
        except (KeyError, TypeError, ValueError):
            raise BadShard(f'its header does not describe tensor "{name}"') from None
        if not known:
            sizes[dtype, shape] = _size(name, dtype, shape)
        expected = sizes[dtype, shape]
        numbers = type(begin) is int and type(end) is int
        if not numbers or not 0 <= begin <= end or expected not in (None, end - begin):
            raise _contradiction(name)
        tensors.append(Tensor(name, dtype, end - begin))
        ranges.append((begin, end))
    ranges.sort()
    at = 0
    for begin, end in ranges:
        if begin != at:
            raise BadShard("its tensors overlap or leave gaps")
        at = end
    whole = 8 + length + at
    if file_size != whole:
        kind = "truncated" if file_size < whole else "too long"
        raise BadShard(f"it is {kind}: {file_size} bytes, but its header describes {whole}")
    return tensors


def tensor_places(text: bytes, file_size: int, budget: Budget) -> list[TensorExtent]:
    """Locate each tensor of a shard; raises BadHeader if header and file disagree."""
    header = _table(text, budget)
    _tensors(header, len(text), file_size)
    start = 8 + len(text)
    return [
        TensorExtent(name, entry["dtype"], *(start + at for at in entry["data_offsets"]))
        for name, entry in header.items()
    ]


def _size(name: str, dtype: str, shape: tuple[Any, ...]) -> int | None:
    """Bytes of a tensor of this type and shape; None for an unknown type."""
    if not all(type(n) is int and n >= 0 for n in shape):
        raise _contradiction(name)
    bits = BITS.get(dtype)
    return (prod(shape) * bits + 7) // 8 if bits else None


def _contradiction(name: str) -> BadShard:
    return BadShard(f'its header contradicts itself about tensor "{name}"')
