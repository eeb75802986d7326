"""The few fields of a JSON body that the gateway reads, without a second copy of the body.

Only the top level counts; of a repeated field the last, as in JSON parsers. The engine judges the
rest: a body that is not JSON has no fields here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from dataclasses import dataclass

STEPS = 500
"""Strings and runs of brackets between two pauses: about a quarter of a millisecond."""
BACKSLASH, BACKSLASHES = ord("\\"), b"\\" * 128
MAX_NAME_BYTES = 1024
MAX_FIELDS = 64
_NEXT = re.compile(rb'"|[{\[]+|[}\]]+')
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_TRUE = re.compile(rb"true\b")
_OBJECT = re.compile(rb"[ \t\r\n]*\{")
_PLAIN = re.compile(rb"[\w .:/-]*")
_NUMBER = re.compile(rb"(\d{1,9})[ \t\r\n]*[,}]")
PROMPT_FIELDS = frozenset({"tools", "system", "instructions"})
CONVERSATION = frozenset({"messages", "input"})
"""Fields of a prompt, and those that have its messages."""
MAX_SPANS = 1001
MAX_TOKENS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})


@dataclass(frozen=True)
class Fields:
    """`model` is None if the body names none; `names` are all fields at the top, sorted.

    `begin` is where the object's fields begin, None if the body is not an object; `model_at` is
    where the value of `model` begins and ends, quotes included. `max_tokens` is the number that
    limits what is generated.
    """

    model: str | None = None
    stream: bool = False
    names: tuple[str, ...] = ()
    begin: int | None = None
    model_at: tuple[int, int] | None = None
    max_tokens: int | None = None
    spans: tuple[tuple[str, int, int], ...] = ()
    """The start and end of each part of the prompt, with its field."""


def fields(body: bytes) -> Generator[Fields | None, None, None]:
    """Yield None from time to time, so that other tasks can run; finally the fields."""
    depth, place, steps = 0, 0, 0
    name, model, stream = "", None, False
    model_at, max_tokens = None, None
    names: set[str] = set()
    spans = _Spans()
    opened = _OBJECT.match(body)
    while match := _NEXT.search(body, place):
        steps += 1
        if steps % STEPS == 0:
            yield None
        place = match.end()
        if (opens := body[place - 1] in b"{[") or body[place - 1] in b"}]":
            before, begin = depth, match.start()
            depth += (place - begin) if opens else (begin - place)
            if opens:
                spans.begin(before, depth, name, begin)
            else:
                spans.close(before, depth, begin)
            continue
        end = body.find(b'"', place)
        if end > 0 and body[end - 1] == BACKSLASH:
            end = yield from _end_of_string(body, place)
        if end < 0:
            break
        begin, place = place, end + 1
        if depth != 1:
            continue
        colon = _COLON.match(body, place)
        if colon is None:  # a value
            if name == "model" and end - begin <= MAX_NAME_BYTES:
                model, model_at = _text(body[begin:end]), (begin - 1, end + 1)
            spans.text(name, begin, end)
            name = ""
            continue
        place = colon.end()
        name = _text(body[begin:end]) or "" if end - begin <= MAX_NAME_BYTES else ""
        if len(names) < MAX_FIELDS:
            names.add(name)
        if name == "stream":
            stream = _TRUE.match(body, place) is not None
        elif name in MAX_TOKENS and (number := _NUMBER.match(body, place)):
            max_tokens = int(number[1])
    begins = opened.end() if opened else None
    ordered = tuple(sorted(names))
    yield Fields(model, stream, ordered, begins, model_at, max_tokens, tuple(spans.found))


class _Spans:
    """Finds where the parts of a prompt begin and end, by counting brackets."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, int]] = []
        self._field, self._field_at, self._item_at = "", 0, 0

    def begin(self, before: int, depth: int, name: str, place: int) -> None:
        """Brackets open at `place`, from the depth `before` down to `depth`."""
        if before < 2 <= depth:
            self._field, self._field_at = name, place + 1 - before
        if before < 3 <= depth:
            self._item_at = place + 2 - before

    def close(self, before: int, depth: int, place: int) -> None:
        """Brackets close at `place`, from the depth `before` up to `depth`."""
        if depth <= 2 < before and self._field in CONVERSATION:
            self._add(self._field, self._item_at, place + before - 2)
        if depth <= 1 < before and self._field in PROMPT_FIELDS:
            self._add(self._field, self._field_at, place + before - 1)

    def text(self, name: str, begin: int, end: int) -> None:
        if name in PROMPT_FIELDS:
            self._add(name, begin, end)

    def _add(self, name: str, begin: int, end: int) -> None:
        if len(self.found) < MAX_SPANS:
            self.found.append((name, begin, end))


def _end_of_string(body: bytes, place: int) -> Generator[None, None, int]:
    """The position of the quote that ends the string at `place`; -1 if there is none.

    Pauses as `fields` does: a string can contain millions of escaped quotes.
    """
    steps = 0
    while (quote := body.find(b'"', place)) >= 0:
        steps += 1
        if steps % STEPS == 0:
            yield None
        before = quote
        while body.endswith(BACKSLASHES, place, before):
            before -= len(BACKSLASHES)
        while before > place and body[before - 1] == BACKSLASH:
            before -= 1
        if (quote - before) % 2 == 0:
            return quote
        place = quote + 1
    return -1


def _text(raw: bytes) -> str | None:
    if _PLAIN.fullmatch(raw):
        # As nearly all names are, in a fraction of the parser's time.
        return raw.decode(errors="replace")
    try:
        text = json.loads(b'"%s"' % raw)
    except ValueError:
        return None
    return text if isinstance(text, str) else None
