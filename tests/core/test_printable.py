"""Untrusted text is displayed, never interpreted."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.printable import one_line, printable

ANY = st.text(st.characters(), max_size=40)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("back\b\b\rover", r"back\x08\x08\rover"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("half \udce8", r"half \udce8"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == one_line(text) == shown


@pytest.mark.parametrize(
    "text", ["训练模型服务器", "Grüße", "한국어", "🧑‍🔬", "a\u3000b", "[/x] \\n"]
)
def test_what_people_read_stays(text: str) -> None:
    assert printable(text) == one_line(text) == text


def test_lines_and_tabs_stay_where_there_may_be_several_lines() -> None:
    assert printable("a\n\tb") == "a\n\tb"
    assert one_line("a\n\tb\u2028c") == r"a\n\tb\u2028c"


@given(ANY)
def test_no_control_character_is_left_and_nothing_is_escaped_twice(text: str) -> None:
    for made, kept in ((printable(text), "\n\t"), (one_line(text), "")):
        assert [c for c in made if unicodedata.category(c) in ("Cc", "Cs") and c not in kept] == []
        assert printable(made) == made
    assert one_line(one_line(text)) == one_line(text)
    assert len(one_line(text).splitlines()) <= 1
