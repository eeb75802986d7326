"""The [cluster] section that `caovanctl` writes into the text of a configuration file.

It stands in a block between two comment lines. A section that was there and turned nothing on, as
that of the file which is installed, becomes comments in the block; so `remove` gives back the text
that `add` was called with, byte by byte. Which text is a valid file is the parser's question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from caovand.core.config.text import toml

BEGIN = "# --- [cluster], by `caovanctl cluster`; `caovanctl cluster leave` undoes it ---"
END = "# --- end of [cluster] ---"
BEFORE = "# The section as it was:"
KEPT = "#~"

_MARKER = re.compile(rf"^({re.escape(BEGIN)}|{re.escape(END)})(?=\r?$)", re.M)
_HEADER = re.compile(r"^[ \t]*\[[ \t]*cluster[ \t]*\][ \t]*(?:#.*)?\r?$", re.M)
_NEXT = re.compile(r"^[ \t]*\[", re.M)
_SETTING_LINE = re.compile(r"^[ \t]*[^#\s].*$", re.M)


class BrokenBlock(Exception):
    """One of the block's comment lines is there without the other, or twice."""


def is_written(text: str) -> bool:
    """Whether the block is there; raises BrokenBlock if only a part of it is."""
    markers = _MARKER.findall(text)
    if markers not in ([], [BEGIN, END]):
        raise BrokenBlock
    return bool(markers)


def add(text: str, keys: Mapping[str, Any]) -> str:
    """The text with a section of these keys: in the place of the one it has, else at its end.

    There must be no block yet.
    """
    assert not is_written(text)
    found = _section(text)
    if found is None:
        # Its own line end comes first: the text may lack its last one.
        return "\n".join((text, *_block(keys), ""))
    begin, end = found
    return text[:begin] + "\n".join(_block(keys, text[begin:end])) + text[end:]


def remove(text: str) -> str:
    """The text as it was before `add`; raises BrokenBlock, and LookupError without a block."""
    if not is_written(text):
        raise LookupError("no block")
    begin, end = _MARKER.finditer(text)
    lines = text[begin.end() : end.start()].split("\n")
    kept = [line for line in lines if line.startswith(KEPT)]
    before, after = text[: begin.start()], text[end.end() :]
    if kept:
        section = "\n".join(line.removeprefix(KEPT).removeprefix(" ") for line in kept)
        return before + section + after
    return re.sub(r"\r?\n\Z", "", before) + re.sub(r"\A\r?\n", "", after)


def _block(keys: Mapping[str, Any], section: str | None = None) -> Iterator[str]:
    """The lines of a block, including those of the section it replaces."""
    yield BEGIN
    yield "[cluster]"
    for name, value in keys.items():
        yield f"{name} = {toml(value)}"
    if section is not None:
        yield BEFORE
        for line in section.split("\n"):
            yield f"{KEPT} {line}"
    yield END


def _section(text: str) -> tuple[int, int] | None:
    """Where a section begins and its last key ends, without the line end; None for no section.

    The comments after its last key belong to the next one.
    """
    header = _HEADER.search(text)
    if header is None:
        return None
    following = _NEXT.search(text, header.end())
    stop = following.start() if following else len(text)
    ends = [header.end(), *(key.end() for key in _SETTING_LINE.finditer(text, header.end(), stop))]
    return header.start(), ends[-1]
