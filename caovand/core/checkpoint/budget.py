"""Limit the work of reading one model's headers, which are untrusted.

A model may have many files. Each can claim large sizes or link to the same file again. All headers
of a model therefore share one budget, charged before their claims are trusted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 160 << 20
MAX_VALUES = 6_000_000
"""Enough for 600,000 tensors with their index, which need some 250 bytes and 10 values each.
Qwen3.5-397B in GPTQ has 370,000 (91 MiB, of which 42 are an indented index), and Kimi K2 has
140,000. A GGUF vocabulary needs 20 MiB.
"""
MAX_PARTS = 1000
MAX_DEPTH = 64
MAX_CPU_S = 60.0
POINTER = "it is a Git LFS pointer, not the file itself"


class BadHeader(Exception):
    """A file cannot be used because of its header; the message begins with "it" or "its"."""


class TooLarge(BadHeader):
    """A header exceeds the remaining budget."""


@dataclass
class Budget:
    """The remaining budget for one model's headers; `clock` returns the reader's CPU time."""

    clock: Callable[[], float]
    bytes_left: int = MAX_BYTES
    values_left: int = MAX_VALUES
    parts_left: int = MAX_PARTS
    cpu_s: float = MAX_CPU_S

    def __post_init__(self) -> None:
        self._until = self.clock() + self.cpu_s

    def begin_part(self) -> None:
        """Count one more file; raises TooLarge."""
        self.parts_left -= 1
        if self.parts_left < 0:
            raise TooLarge(f"the model has more than {MAX_PARTS} files")
        self.spend()

    def spend(self, *, size_bytes: int = 0, values: int = 0) -> None:
        """Charge the budget; raises TooLarge if it does not suffice."""
        self.bytes_left -= size_bytes
        self.values_left -= values
        self.require(0)
        if self.values_left < 0:
            raise _excess(f"{MAX_VALUES:,} values")
        if self.clock() > self._until:
            raise _excess(f"{MAX_CPU_S:.0f} s of CPU time")

    def require(self, size_bytes: int) -> None:
        """Raise TooLarge if fewer bytes are left, without charging anything."""
        if size_bytes > self.bytes_left:
            raise _excess(f"{MAX_BYTES >> 20} MiB")

    def json(self, data: bytes, max_values: int) -> Any:
        """Parse a JSON document of at most `max_values` values; raises BadHeader.

        Every value of a list or table except the first follows a comma, so commas bound the number
        of values.
        """
        containers = data.count(b"[") + data.count(b"{")
        values = data.count(b",") + containers
        if values > max_values:
            raise TooLarge(f"it has more than {max_values:,} values")
        self.spend(size_bytes=len(data), values=values)
        try:
            content = json.loads(data)
        except RecursionError:
            raise _too_deep() from None
        except ValueError as problem:
            raise BadHeader(f"it is not JSON ({problem})") from None
        if containers > MAX_DEPTH:
            _check_depth(content)
        return content


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(MAX_DEPTH + 1):
        inner = [entry for entry in level if isinstance(entry, (dict, list))]
        level = [
            value
            for entry in inner
            for value in (entry.values() if isinstance(entry, dict) else entry)
        ]
        if not level:
            return
    raise _too_deep()


def _excess(limit: str) -> TooLarge:
    return TooLarge(f"it exceeds the limit for all headers and tables of a model, {limit}")


def _too_deep() -> TooLarge:
    return TooLarge(f"its nesting is more than {MAX_DEPTH} levels deep")
