"""Arguments of a request, and errors about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Result = Mapping[str, Any]
"""The `result` of a Reply."""


class VerbError(Exception):
    """A request that cannot be carried out: code, message and hint."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


def argument(args: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """The argument or its default; raises VerbError if it has the wrong type."""
    value = args.get(name, default)
    if kind is float and isinstance(value, int) and abs(value) < 1 << 53:
        value = float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(args.get(name), bool)):
        raise VerbError("bad-argument", f"argument {name} must be of type {kind.__name__}")
    return value
