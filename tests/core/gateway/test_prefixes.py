"""Detecting which message of a conversation changed, from digests of its parts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caovand.core.gateway import prefixes
from caovand.core.gateway.body import fields
from caovand.core.gateway.prefixes import (
    MAX_BODY_BYTES,
    MAX_CLIENTS,
    MAX_CONVERSATIONS,
    Prefixes,
    prefix_parts,
)

LONG = 4000
SYSTEM = {"role": "system", "content": "be brief"}


def says(text: str, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text * LONG, **more}]}


def took(
    one: Prefixes, *messages: Any, client: str = "a", rate: float | None = None, **more: Any
) -> str:
    body = json.dumps({"model": "m", "messages": messages, **more}).encode()
    found = [*fields(body)][-1]
    return one.take(client, tuple(prefix_parts(body, found.spans)), rate)


A, B, C, D = (says(letter) for letter in "ABCD")


def test_a_message_without_a_mark_is_not_searched_for_it_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefixes, "_CACHE_CONTROL", None)
    assert took(Prefixes(), SYSTEM, A, B) == ""


def test_a_conversation_that_goes_on_or_comes_again_has_not_changed() -> None:
    one = Prefixes()
    assert took(one, SYSTEM, A) == ""
    assert took(one, SYSTEM, A, B, C) == ""
    assert took(one, SYSTEM, A, B, C) == ""
    assert took(one, SYSTEM, A, B) == ""
    assert took(one, SYSTEM, A, B, C, D) == ""


@pytest.mark.parametrize(
    ("messages", "change"),
    [
        ((says("x"), A, B, C, D), "message 1 changed: about 3,0"),
        ((SYSTEM, says("x"), B, C, D), "message 2 changed: about 2,0"),
        ((SYSTEM, B, C, D), "message 2 was removed: about 2,0"),
        ((SYSTEM, says("x"), A, B, C), "message 2 was inserted: about 3,0"),
        ((SYSTEM, D, says("x")), ""),
        ((SYSTEM, A, says("x"), D), ""),
    ],
)
def test_the_first_part_that_differs_is_named_with_what_follows_from_it(
    messages: tuple[Any, ...], change: str
) -> None:
    one = Prefixes()
    took(one, SYSTEM, A, B, C)
    assert took(one, *messages).startswith(change)
    assert not change or took(one, *messages, D) == "", "it is told once"


@pytest.mark.parametrize(
    ("field", "title"),
    [("system", "the system prompt"), ("instructions", "the instructions")],
)
def test_what_comes_before_the_messages_is_named(field: str, title: str) -> None:
    one = Prefixes()
    took(one, A, B, **{field: "at 10:00"})
    assert took(one, A, B, C, **{field: "at 10:01"}).startswith(f"{title} changed: about 2,")
    took(one, A, B, tools=[{"name": "f"}], client="b")
    told = took(one, A, B, tools=[{"name": "g"}], client="b")
    assert told.startswith("the list of tools changed")


def test_a_mark_for_caching_changes_nothing() -> None:
    one, mark = Prefixes(), {"type": "ephemeral"}
    took(one, SYSTEM, A, says("B", cache_control=mark))
    assert took(one, SYSTEM, A, B, says("C", cache_control=mark)) == ""


def test_little_that_is_read_again_and_other_clients_are_not_worth_a_word() -> None:
    one = Prefixes()
    took(one, SYSTEM, says("A"), {"role": "user", "content": "hi"})
    assert took(one, SYSTEM, says("B"), {"role": "user", "content": "hi"}) == ""
    assert took(one, SYSTEM, says("x"), A, client="b") == ""


@pytest.mark.parametrize(
    ("rate", "told"),
    [
        (None, "tokens read again"),
        (20_000.0, "tokens read again, about 0.2 s"),
        (2_200.0, "tokens read again, about 1 s"),
        (250.0, "tokens read again, about 12 s"),
        (2.0, "tokens read again, about 1,522 s"),
    ],
)
def test_seconds_are_told_by_the_rate_measured_and_never_without_one(
    rate: float | None, told: str
) -> None:
    one = Prefixes()
    took(one, SYSTEM, A, B, C, rate=rate)
    assert took(one, says("x"), A, B, C, rate=rate).endswith(told)


def test_only_so_much_is_kept() -> None:
    one = Prefixes()
    for number in range(MAX_CONVERSATIONS + 5):
        took(one, {"role": "user", "content": str(number)}, A)
    for number in range(MAX_CLIENTS + 5):
        took(one, A, client=str(number))
    assert len(one._kept) == MAX_CLIENTS
    assert max(map(len, one._kept.values())) <= MAX_CONVERSATIONS
    assert [*prefix_parts(b"x" * (MAX_BODY_BYTES + 1), [("messages", 0, 1)])] == []
