"""Reads JSON documents that others wrote: other nodes, earlier daemons, engines.

A reader takes a value as `json` returns it and the name of that part of the document. It returns
the value, unchanged or converted to its type, or raises BadDocument. Nothing is clamped or
converted: a boolean is no number, and 5.0 no whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from caovand.core.printable import one_line

T = TypeVar("T")
U = TypeVar("U")
PartReader = Callable[[Any, str], T]
MAX_NUMBER = 1 << 53
"""The maximum of a number without explicit bounds: beyond it, a float skips whole numbers."""
MAX_SHOWN = 64
"""Characters of a hostile name in an error."""


class BadDocument(ValueError):
    """A document that cannot be read: `part` of it is wrong, "" for all of it."""

    def __init__(self, part: str, fact: str) -> None:
        super().__init__(f"{part or 'it'} {fact}")


def read_or_none(reader: PartReader[T], document: Any) -> T | None:
    """Apply the reader to a document; None if the document is invalid."""
    try:
        return reader(document, "")
    except BadDocument:
        return None


def anything(value: Any, part: str) -> Any:
    """Read any value; the caller checks it."""
    return value


def flag(value: Any, part: str) -> bool:
    """Read true or false."""
    if type(value) is not bool:
        raise BadDocument(part, "is neither true nor false")
    return value


def string(max_chars: int | None = None) -> PartReader[str]:
    """Read a string."""
    bound = "" if max_chars is None else f" of at most {max_chars} characters"

    def read(value: Any, part: str) -> str:
        if not isinstance(value, str) or (max_chars is not None and len(value) > max_chars):
            raise BadDocument(part, f"is not a string{bound}")
        return value

    return read


_STRING = string()


def is_number(value: Any, low: float = -MAX_NUMBER, high: float = MAX_NUMBER) -> bool:
    """Whether this is a number within bounds; NaN never is."""
    return type(value) in (int, float) and bool(low <= value <= high)


def is_whole(value: Any, low: float = -MAX_NUMBER, high: float = MAX_NUMBER) -> bool:
    """Whether this is a whole number within bounds."""
    return type(value) is int and low <= value <= high


def whole(low: int = 0, high: int = MAX_NUMBER) -> PartReader[int]:
    """Read a whole number within bounds."""

    def read(value: Any, part: str) -> int:
        if not is_whole(value, low, high):
            raise BadDocument(part, f"is not a whole number from {low} to {high}")
        return value  # type: ignore[no-any-return]

    return read


def number(low: float = -MAX_NUMBER, high: float = MAX_NUMBER) -> PartReader[float]:
    """Read a number within bounds; NaN is in none."""

    def read(value: Any, part: str) -> float:
        if not is_number(value, low, high):
            raise BadDocument(part, f"is not a number from {low:.0f} to {high:.0f}")
        return value  # type: ignore[no-any-return]

    return read


def one_of(values: Collection[T]) -> PartReader[T]:
    """Read one of these strings."""

    def read(value: Any, part: str) -> T:
        if not isinstance(value, str) or value not in values:
            raise BadDocument(part, f"is not one of {', '.join(map(str, values))}")
        return value  # type: ignore[return-value]

    return read


def optional(reader: PartReader[T]) -> PartReader[T | None]:
    """Accept null, or a value that another reader accepts."""
    return lambda value, part: None if value is None else reader(value, part)


def require(reader: PartReader[T], holds: Callable[[T], object], fact: str) -> PartReader[T]:
    """Accept another reader's value only if `holds` is true of it; `fact` is the error
    otherwise.
    """

    def read(value: Any, part: str) -> T:
        result = reader(value, part)
        if not holds(result):
            raise BadDocument(part, fact)
        return result

    return read


def into(make: Callable[[T], U], reader: PartReader[T]) -> PartReader[U]:
    """Read with another reader, and convert the result with `make`."""
    return lambda value, part: make(reader(value, part))


def listed(
    reader: PartReader[T], max_entries: int | None = None, min_entries: int = 0
) -> PartReader[tuple[T, ...]]:
    """Read a list, each entry by this reader."""
    bound = "" if max_entries is None else f" of {min_entries} to {max_entries} entries"

    def read(value: Any, part: str) -> tuple[T, ...]:
        if (
            not isinstance(value, list)
            or len(value) < min_entries
            or (max_entries is not None and len(value) > max_entries)
        ):
            raise BadDocument(part, f"is not a list{bound}")
        return tuple(reader(entry, f"{part}[{at}]") for at, entry in enumerate(value))

    return read


def row(*readers: PartReader[Any]) -> PartReader[tuple[Any, ...]]:
    """Read a list of exactly these values."""

    def read(value: Any, part: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(readers):
            raise BadDocument(part, f"is not a list of {len(readers)} values")
        entries = zip(readers, value, strict=True)
        return tuple(reader(entry, f"{part}[{at}]") for at, (reader, entry) in enumerate(entries))

    return read


def table(
    reader: PartReader[T], max_entries: int | None = None, name: PartReader[str] = _STRING
) -> PartReader[dict[str, T]]:
    """Read a table of any names, each name and value by its reader."""
    bound = "" if max_entries is None else f" of at most {max_entries} entries"

    def read(value: Any, part: str) -> dict[str, T]:
        if not isinstance(value, dict) or (max_entries is not None and len(value) > max_entries):
            raise BadDocument(part, f"is not a table{bound}")
        return {
            name(key, f"a name in {part or 'the document'}"): reader(entry, _under(part, key))
            for key, entry in value.items()
        }

    return read


def record(
    make: Callable[..., T],
    readers: Mapping[str, PartReader[Any]],
    *,
    may_lack: Collection[str] = (),
    may_have_more: bool = False,
) -> PartReader[T]:
    """A reader of tables: reads each field with its own reader and passes all to `make`.

    A field of `may_lack` that is missing is not passed to `make`; `may_have_more` is for files,
    which outlive releases: their unknown fields are ignored.
    """

    def read(value: Any, part: str) -> T:
        if not isinstance(value, dict):
            raise BadDocument(part, "is not a table")
        if not may_have_more and (unknown := [key for key in value if key not in readers]):
            raise BadDocument(_under(part, unknown[0]), "is unknown")
        if missing := [key for key in readers if key not in value and key not in may_lack]:
            raise BadDocument(_under(part, missing[0]), "is missing")
        present = ((key, reader) for key, reader in readers.items() if key in value)
        return make(**{key: reader(value[key], _under(part, key)) for key, reader in present})

    return read


def _under(part: str, key: Any) -> str:
    shown = one_line(key[:MAX_SHOWN]) if isinstance(key, str) else "a key"
    return f"{part}.{shown}" if part else shown
