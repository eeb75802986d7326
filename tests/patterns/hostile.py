"""Texts made to keep a pattern busy, derived from its own parse.

For each repeat: a text that reaches it, then many of what it takes, then what fails. For each
alternative: many of its beginnings. Beside them a fixed set that is hostile to most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

try:
    from re import _constants as c  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # before Python 3.11
    import sre_constants as c  # type: ignore[import-not-found, no-redef, unused-ignore]
    import sre_parse as parser  # type: ignore[import-not-found, no-redef, unused-ignore]

GENERIC = (
    "\\", "\\\\'", "\\\"", '"', "'", " ", "\t", "1", "a", "A", "a.", "A.", "a.a.a", "://", "a://",
    "[", "(", "{", "1/", "%|", "-", "_", "_key", "a_", "'a':'", '"a":"', ": ", "a a ", "Error: ",
    "\x1b[", "é", "█ ", "0.", "=", ",",
)  # fmt: skip
FAIL = "\x00\n\x00"
WIDE = 8  # more repeats than this is a repeat without an end, as far as time is concerned
FEW = 6  # samples of one place

Items = Sequence[tuple[Any, Any]]


def text(head: str, pump: str, size: int) -> str:
    """The beginning, as many pumps as make `size` characters, and what fails."""
    return head + pump * (size // len(pump) + 1) + FAIL


def pumps(pattern: re.Pattern[Any]) -> list[tuple[str, str]]:
    """What to begin with and what to repeat, each pair once."""
    found: dict[tuple[str, str], None] = dict.fromkeys(("", one) for one in GENERIC)
    source = pattern.pattern
    text = source.decode("latin-1") if isinstance(source, bytes) else source
    tree = parser.parse(text, pattern.flags & ~re.DEBUG)
    found.update(dict.fromkeys(of_items(list(tree), [""], "")))
    return [(head, pump) for head, pump in found if pump]


def of_items(items: Items, heads: list[str], after: str) -> Iterator[tuple[str, str]]:
    """Pumps of a sequence that is reached behind `heads` and followed by `after`."""
    for at, (kind, value) in enumerate(items):
        rest = "".join(sample(one)[0] for one in items[at + 1 :]) + after
        yield from of_item(kind, value, heads, rest)
        heads = [head + text for head in heads for text in sample((kind, value))][:FEW]
    for head in heads:
        yield "", head  # one match behind the other
        yield "", head[:-1]  # or nearly one


def of_item(kind: Any, value: Any, heads: list[str], rest: str) -> Iterator[tuple[str, str]]:
    if kind in (c.MAX_REPEAT, c.MIN_REPEAT) or kind == getattr(c, "POSSESSIVE_REPEAT", None):
        _, most, body = value
        if most > WIDE:
            bodies = samples(list(body))
            for head in heads:
                for text in [*bodies, *near(list(body), rest)]:
                    yield head, text
                    yield "", head + text
                    yield head, text + rest[:-1]
        yield from of_items(list(body), heads, rest)
    elif kind is c.BRANCH:
        for branch in value[1]:
            yield from of_items(list(branch), heads, rest)
    elif kind is c.SUBPATTERN:
        yield from of_items(list(value[-1]), heads, rest)
    elif kind in (c.ASSERT, c.ASSERT_NOT):
        yield from of_items(list(value[1]), heads, rest)


def near(body: Items, rest: str) -> list[str]:
    """What the repeat takes and what comes behind it begins with: the two are tried on the same."""
    one = re.compile(r"\s+")
    cuts = {rest[:1], rest[:2], rest[: len(rest) // 2], rest[:-1], one.sub(" ", rest)[:-1]}
    return [cut for cut in cuts if cut]


def samples(items: Items) -> list[str]:
    """Some texts that a sequence takes."""
    found = [""]
    for item in items:
        found = [text + more for text in found for more in sample(item)][:FEW]
    return found


def sample(item: tuple[Any, Any]) -> list[str]:
    """Some texts that one item takes, at least one."""
    kind, value = item
    if kind is c.LITERAL:
        return [chr(value)]
    if kind is c.NOT_LITERAL:
        return ["a" if value != ord("a") else "b"]
    if kind is c.ANY:
        return ["a", " ", "."]
    if kind is c.IN:
        return of_class(value)
    if kind in (c.MAX_REPEAT, c.MIN_REPEAT) or kind == getattr(c, "POSSESSIVE_REPEAT", None):
        least, most, body = value
        times = max(least, 1 if most else 0)
        return [text * times for text in samples(list(body))] + ([""] if least == 0 else [])
    if kind is c.BRANCH:
        return [text for branch in value[1] for text in samples(list(branch))[:2]][:FEW]
    if kind is c.SUBPATTERN:
        return samples(list(value[-1]))
    if kind is c.ASSERT and value[0] < 0:
        return samples(list(value[1]))
    return [""]


def of_class(items: Items) -> list[str]:
    """One character for each part of a class."""
    if items and items[0][0] is c.NEGATE:
        banned = re.compile(f"[{''.join(map(class_text, items[1:]))}]")
        free = [one for one in "a1 .:/\\'\"-_[(é" if not banned.match(one)]
        return free[:FEW] or ["\x01"]
    found: list[str] = []
    for kind, value in items:
        if kind is c.LITERAL:
            found.append(chr(value))
        elif kind is c.RANGE:
            found.append(chr(value[0]))
        elif kind is c.CATEGORY:
            found += [one for one in "1a ." if re.match(category(value), one)][:2]
    return list(dict.fromkeys(found))[:FEW] or ["a"]


def class_text(item: tuple[Any, Any]) -> str:
    kind, value = item
    if kind is c.LITERAL:
        return re.escape(chr(value))
    if kind is c.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    return category(value)


def category(value: Any) -> str:
    names = {
        c.CATEGORY_DIGIT: r"\d", c.CATEGORY_NOT_DIGIT: r"\D", c.CATEGORY_SPACE: r"\s",
        c.CATEGORY_NOT_SPACE: r"\S", c.CATEGORY_WORD: r"\w", c.CATEGORY_NOT_WORD: r"\W",
    }  # fmt: skip
    return names[value]
