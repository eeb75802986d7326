"""The [cluster] section that `caovanctl` writes into a configuration file.

The section stands in a block between two comment lines. An existing section that turned nothing on,
such as the installed file's, becomes comments within the block. So `remove` restores the text that
`add` received, byte for byte. Whether the text is valid is for the parser to decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from caovand.core.config.text import toml

BEGIN = "# --- [cluster], by `caovanctl cluster`; `caovanctl cluster leave` undoes it ---"
END = "# --- end of [cluster] ---"
SAVED_TITLE = "# The previous section:"
SAVED_PREFIX = "#~"

_MARKER = re.compile(rf"^({re.escape(BEGIN)}|{re.escape(END)})(?=\r?$)", re.M)
_HEADER = re.compile(r"^[ \t]*\[[ \t]*cluster[ \t]*\][ \t]*(?:#.*)?\r?$", re.M)
_NEXT = re.compile(r"^[ \t]*\[", re.M)
_SETTING_LINE = re.compile(r"^[ \t]*[^#\s].*$", re.M)


class BrokenBlock(Exception):
    """Only one of the block's comment lines is present, or one appears twice."""


def is_written(text: str) -> bool:
    """Whether the block is present; raises BrokenBlock if only part of it is."""
    markers = _MARKER.findall(text)
    if markers not in ([], [BEGIN, END]):
        raise BrokenBlock
    return bool(markers)


def add(text: str, keys: Mapping[str, Any]) -> str:
    """Add a section with these keys: in place of the existing one, else at the end.

    There must be no block yet.
    """
    assert not is_written(text)
    bounds = _section_bounds(text)
    if bounds is None:
        # Begin with a line end: the text may lack its last one.
        return "\n".join((text, *_block(keys), ""))
    begin, end = bounds
    return text[:begin] + "\n".join(_block(keys, text[begin:end])) + text[end:]


def remove(text: str) -> str:
    """Restore the text as it was before `add`; raises BrokenBlock, or LookupError without a
    block."""
    if not is_written(text):
        raise LookupError("no block")
    begin, end = _MARKER.finditer(text)
    lines = text[begin.end() : end.start()].split("\n")
    kept = [line for line in lines if line.startswith(SAVED_PREFIX)]
    before, after = text[: begin.start()], text[end.end() :]
    if kept:
        section = "\n".join(line.removeprefix(SAVED_PREFIX).removeprefix(" ") for line in kept)
        return before + section + after
    return re.sub(r"\r?\n\Z", "", before) + re.sub(r"\A\r?\n", "", after)


def _block(keys: Mapping[str, Any], section: str | None = None) -> Iterator[str]:
    """Lines of the block, including those of the section it replaces."""
    yield BEGIN
    yield "[cluster]"
    for name, value in keys.items():
        yield f"{name} = {toml(value)}"
    if section is not None:
        yield SAVED_TITLE
        for line in section.split("\n"):
            yield f"{SAVED_PREFIX} {line}"
    yield END


def _section_bounds(text: str) -> tuple[int, int] | None:
    """Start of the section and end of its last key, without the line end; None without a section.

    Comments after the last key belong to the next section.
    """
    header = _HEADER.search(text)
    if header is None:
        return None
    following = _NEXT.search(text, header.end())
    stop = following.start() if following else len(text)
    ends = [header.end(), *(key.end() for key in _SETTING_LINE.finditer(text, header.end(), stop))]
    return header.start(), ends[-1]
