"""The [cluster] section in a file: added, and removed without a trace."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.cluster.section import BEGIN, END, BrokenBlock, add, is_written, remove
from caovand.core.config.schema import Config
from caovand.core.config.text import render

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KEYS = {"role": "head", "head": "10.0.0.1:7070"}
SHIPPED = render()
SPACES = st.sampled_from(["", " ", "\t", "  "])
LINE_ENDS = st.sampled_from(["\n", "\r\n"])
OTHERS = ("", "# words, [cluster] among them", '[model]\npath = "/srv/m"', "[engine]\ngpus = [0]")


@st.composite
def files(draw: st.DrawFn) -> str:
    """Valid TOML with sections in any order, a [cluster] of defaults perhaps among them."""
    gap = draw(SPACES)
    cluster = draw(
        st.sampled_from(
            [
                None,
                f"{gap}[{gap}cluster{gap}]{gap}",
                f'[cluster] # mine\n\n{gap}role = "off"{gap}\n# words\nnodes = 2\n# of the next',
            ]
        )
    )
    parts = [*draw(st.lists(st.sampled_from(OTHERS), unique=True)), *filter(None, [cluster])]
    text = "\n".join(draw(st.permutations(parts)))
    end = draw(LINE_ENDS)
    return text.replace("\n", end) + draw(st.sampled_from(["", end, end * 2]))


def parsed(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


@given(files())
def test_leaving_gives_back_the_same_bytes_and_joining_changes_that_section_alone(
    text: str,
) -> None:
    joined = add(text, KEYS)
    assert is_written(joined)
    assert not is_written(text)
    assert parsed(joined) == {**parsed(text), "cluster": KEYS}
    assert remove(joined) == text


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("[cluster]=\"'#\n\r \t")))
def test_any_text_at_all_is_given_back(text: str) -> None:
    if not text.endswith("\r"):  # which is no TOML
        assert remove(add(text, KEYS)) == text


def test_the_section_of_the_installed_file_becomes_comments_in_its_place() -> None:
    joined = add(SHIPPED, KEYS)
    assert remove(joined) == SHIPPED
    assert parsed(joined) == {**parsed(SHIPPED), "cluster": KEYS}
    assert '\n#~ role = "off"\n' in joined
    assert joined.index(END) < joined.index("\n# Metrics by the minute") < joined.index("[history]")


@given(files(), st.sampled_from(OTHERS))
def test_what_is_added_below_meanwhile_stays(text: str, more: str) -> None:
    joined = add(text + "\n", KEYS)
    assert remove(joined + more) == text + "\n" + more


@given(files())
def test_an_editor_that_strips_blanks_or_the_last_line_end_does_no_harm(text: str) -> None:
    stripped = "\n".join(line.rstrip() for line in add(text, KEYS).split("\n")).rstrip("\n")
    assert parsed(remove(stripped)) == parsed(text)


def test_values_are_written_as_toml() -> None:
    odd = {"role": 'a"b\\', "nodes": 3, "interface": None}
    assert parsed(add("", odd)) == {"cluster": {**odd, "interface": "auto"}}


@pytest.mark.parametrize(
    "text", [BEGIN, f"{END}\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{BEGIN}\n{END}\n", f"a\n{END}\r\n"]
)
def test_half_a_block_is_no_block(text: str) -> None:
    for use in (is_written, remove, lambda text: add(text, KEYS)):
        with pytest.raises(BrokenBlock):
            use(text)


def test_there_must_be_a_block_to_remove() -> None:
    with pytest.raises(LookupError):
        remove(SHIPPED)


def test_the_words_of_a_marker_within_a_line_are_no_marker() -> None:
    text = f'x = "{BEGIN}"\ny = "{END}"\n'
    assert remove(add(text, KEYS)) == text


def test_the_defaults_have_that_section() -> None:
    """If the installed file had none, joining would simply append it."""
    assert parsed(SHIPPED)["cluster"]["role"] == Config().cluster.role == "off"
