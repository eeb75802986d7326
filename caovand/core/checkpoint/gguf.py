"""Parse headers of GGUF files: metadata values and tensor descriptions, without tensor data.

A file consists of a magic number, a version, two counts, the values, a description of each tensor
and the aligned tensors in the order described. The parser reads only the header, piece by piece. It
bounds every length and count that the file claims and charges their cost to a budget.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from caovand.core.checkpoint.budget import POINTER, BadHeader, Budget

FIRST_PIECE = 64 << 10  # for each part of a model; most headers are small
PIECE = 1 << 20  # size of an HTTP request
MAX_KEYS = 10_000
MAX_TENSORS = 200_000
MAX_ENTRIES = 4_000_000  # per array
MAX_NAME = 65_535
MAX_TENSOR = 255
MAX_TEXT = 8 << 20  # bytes of one string: chat templates are long
MAX_KEPT = 4096  # entries of a numeric array: few have more than one per layer
MAX_DIMENSIONS = 4
ALIGNMENT = "general.alignment"
TENSOR_VALUES, ENTRY_VALUES, TEXT_BYTES = 20, 4, 4
"""A value that is kept costs more than one that is skipped."""

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_SIZES = {kind: struct.calcsize("<" + code) for kind, code in _FORMATS.items()}

TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
    27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
}  # fmt: skip
"""Each type's name, weights per block and bytes per block."""


class BadGguf(BadHeader):
    """The file is not a complete GGUF file."""


class GgufTensor(NamedTuple):
    """A tensor as described in its header; `size` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class ArrayLength:
    """The length of an array whose entries are not kept, such as the vocabulary."""

    entries: int


@dataclass(frozen=True)
class GgufFile:
    """A parsed header. Arrays of text and long ones become an ArrayLength; `size` is the file's."""

    version: int
    values: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]
    size: int


def parse(read: Callable[[int], bytes], size: int, budget: Budget) -> GgufFile:
    """Parse the header of a file of `size` bytes that `read` returns in order; raises BadHeader."""
    budget.begin_part()
    source = _Source(read, size, budget)
    if size < 24:
        raise BadGguf(f"it has {size} bytes, fewer than any GGUF file")
    magic = source.take(4)
    if magic != b"GGUF":
        raise BadGguf(
            POINTER if magic == b"vers" else "it does not start with the GGUF magic number"
        )
    version = source.number(4)
    if version not in (2, 3):
        swapped = version & 0xFFFF == 0 and version != 0
        what = "it is big-endian" if swapped else f"its format is version {version}"
        raise BadGguf(f"{what}; caovan reads versions 2 and 3, little-endian")
    tensors, keys = source.number(10), source.number(10)
    if keys > MAX_KEYS or tensors > MAX_TENSORS:
        raise BadGguf(f"its header claims {tensors} tensors and {keys} values")
    values: dict[str, Any] = {}
    for _ in range(keys):
        key = source.text(MAX_NAME)
        if key in values:
            raise BadGguf(f"its header sets {_quote(key)} twice")
        values[key] = source.value(source.number(4))
    return GgufFile(version, values, _tensors(source, tensors, values), size)


def _tensors(source: _Source, count: int, values: Mapping[str, Any]) -> tuple[GgufTensor, ...]:
    alignment = values.get(ALIGNMENT, 32)
    if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise BadGguf(f"{ALIGNMENT} is {_quote(alignment)}, not a power of two")
    source.budget.spend(values=count * TENSOR_VALUES)
    tensors: dict[str, GgufTensor] = {}
    at = 0
    for _ in range(count):
        name = source.text(MAX_TENSOR)
        if name in tensors:
            raise BadGguf(f"its header lists tensor {_quote(name)} twice")
        dimensions = source.number(4)
        if dimensions > MAX_DIMENSIONS:
            raise BadGguf(f"tensor {_quote(name)} has {dimensions} dimensions")
        shape = tuple(source.number(10) for _ in range(dimensions))
        kind, offset = source.number(4), source.number(10)
        tensor = _tensor(name, shape, kind)
        if offset != at:
            raise BadGguf(f"tensor {_quote(name)} is at {offset}, expected at {at}")
        tensors[name] = tensor
        at = _pad(at + tensor.size, alignment)
        if at - alignment >= source.size:
            raise _truncation(source, at)
    begin = _pad(source.at, alignment)
    # The padding after the last tensor may be missing.
    last = at - _padding_after(tensors, alignment)
    if begin + last > source.size:
        raise _truncation(source, begin + last)
    return tuple(tensors.values())


def _truncation(source: _Source, needed: int) -> BadGguf:
    return BadGguf(
        f"it is truncated: {source.size} bytes, but its header describes {needed} or more"
    )


def _padding_after(tensors: Mapping[str, GgufTensor], alignment: int) -> int:
    if not tensors:
        return 0
    size = next(reversed(list(tensors.values()))).size
    return _pad(size, alignment) - size


def _pad(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _tensor(name: str, shape: tuple[int, ...], kind: int) -> GgufTensor:
    if kind not in TYPES:
        raise BadGguf(f"tensor {_quote(name)} has unknown type {kind}")
    dtype, block, block_size = TYPES[kind]
    elements = prod(shape)
    row = shape[0] if shape else 1
    if not all(shape) or row % block or elements >= 1 << 50:
        raise BadGguf(f"tensor {_quote(name)} of type {dtype} has the shape {list(shape)}")
    return GgufTensor(name, dtype, shape, elements // block * block_size)


def _quote(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:80] + "..."


class _Source:
    """The header's bytes in order, read in pieces within the budget."""

    def __init__(self, read: Callable[[int], bytes], size: int, budget: Budget) -> None:
        self.size, self.budget = size, budget
        self._read, self._buffer, self._place, self._before = read, b"", 0, 0
        self._piece = FIRST_PIECE

    @property
    def at(self) -> int:
        """Number of bytes consumed."""
        return self._before + self._place

    def take(self, count: int) -> bytes:
        """Return the next bytes; raises BadHeader if the file ends or the budget runs out first."""
        if len(self._buffer) - self._place < count:
            self._fill(count)
        self._place += count
        return self._buffer[self._place - count : self._place]

    def _fill(self, count: int) -> None:
        if self.at + count > self.size:
            raise BadGguf(f"it is truncated: {self.size} bytes end within its header")
        rest = self._buffer[self._place :]
        self._before += self._place
        self._place, parts, have = 0, [rest], len(rest)
        while have < count:
            part = self._read(max(count - have, self._piece))
            self._piece = min(2 * self._piece, PIECE)
            self.budget.spend(size_bytes=len(part))
            if not part:
                raise BadGguf(f"it is truncated: {self._before + have} bytes end within its header")
            parts.append(part)
            have += len(part)
        self._buffer = b"".join(parts)

    def number(self, kind: int) -> int:
        """Read an integer of one of the format's integer types."""
        value: int = struct.unpack("<" + _FORMATS[kind], self.take(_SIZES[kind]))[0]
        return value

    def text(self, max_bytes: int) -> str:
        """Read a text of at most `max_bytes` bytes."""
        length = self.number(10)
        if length > max_bytes:
            raise BadGguf(f"its header has a string of {length} bytes, more than {max_bytes}")
        self.budget.spend(values=1 + length // TEXT_BYTES)
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Read a value of this type."""
        if kind == _TEXT:
            return self.text(MAX_TEXT)
        if kind == _ARRAY:
            return self._array()
        if kind not in _FORMATS:
            raise BadGguf(f"its header has a value of unknown type {kind}")
        return struct.unpack("<" + _FORMATS[kind], self.take(_SIZES[kind]))[0]

    def _array(self) -> tuple[Any, ...] | ArrayLength:
        kind, count = self.number(4), self.number(10)
        if count > MAX_ENTRIES:
            raise BadGguf(f"its header claims an array of {count} entries")
        if kind == _TEXT:
            self.budget.spend(values=count)
            for _ in range(count):
                self._skip(self.number(10))
            return ArrayLength(count)
        if kind not in _FORMATS:
            raise BadGguf(f"its header has an array of type {kind}")
        if count > MAX_KEPT:
            self._skip(count * _SIZES[kind])
            return ArrayLength(count)
        self.budget.spend(values=count * ENTRY_VALUES)
        return struct.unpack(f"<{count}{_FORMATS[kind]}", self.take(count * _SIZES[kind]))

    def _skip(self, count: int) -> None:
        while count:
            step = min(count, PIECE)
            self.take(step)
            count -= step
