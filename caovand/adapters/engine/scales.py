"""Search a quantised checkpoint for negative scales, which no header shows.

The files belong to a model that `model_folder` has read: their headers are complete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Literal

from caovand.adapters.files import safe_files
from caovand.core.checkpoint.budget import Budget
from caovand.core.checkpoint.safetensors import BadShard, TensorExtent, header_length, tensor_places

CHUNK_BYTES = 1 << 20
SCALES = ".scales"
Word = Literal["H", "I", "Q"]
WORDS: Mapping[str, Word] = {"F16": "H", "BF16": "H", "F32": "I", "F64": "Q"}
"""Types of scales, as unsigned integers of their size: a value above the sign bit alone is
negative."""


def find_negative(shard: Path) -> str:
    """Find a shard's first tensor with a negative scale, "" if none; raises BadHeader or OSError.

    A model of 32B parameters has half a gigabyte of scales: an unchanged file is read only once.
    """
    seen = shard.stat()
    return _negative(shard, seen.st_ino, seen.st_size, seen.st_mtime_ns)


@lru_cache(maxsize=1024)
def _negative(path: Path, *stamp: int) -> str:
    with os.fdopen(safe_files.open_regular(path), "rb") as shard:
        size_bytes = os.fstat(shard.fileno()).st_size
        budget, length = Budget(time.thread_time), header_length(shard.read(8), size_bytes)
        budget.require(length)
        for place in tensor_places(shard.read(length), size_bytes, budget):
            if place.name.endswith(SCALES) and _is_negative(shard, place):
                return place.name
    return ""


def _is_negative(shard: BinaryIO, place: TensorExtent) -> bool:
    word = WORDS.get(place.dtype)
    if word is None:
        raise BadShard(f"its scales {place.name} are of type {place.dtype}, not floats")
    shard.seek(place.begin)
    left = place.end - place.begin
    while left:
        part = shard.read(min(left, CHUNK_BYTES))
        if len(part) < min(left, CHUNK_BYTES):
            raise BadShard("it shrank while being read")
        if _has_negative(part, word):
            return True
        left -= len(part)
    return False


def _has_negative(part: bytes, word: Word) -> bool:
    words = memoryview(part).cast(word)
    width = words.itemsize
    if part[width - 1 :: width].isascii():  # no sign bit is set, checked at the speed of memory
        return False
    return any(value > 1 << (8 * width - 1) for value in words)  # minus zero is not negative
