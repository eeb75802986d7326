"""Values of the figures that an engine's log reports."""

from __future__ import annotations

import re

Figure = float | int | str
NUMBER = re.compile(r"-?[\d,]+(?:\.\d+)?$")


def parse_figure(text: str) -> Figure:
    """The number that a text is, else the text."""
    if not NUMBER.match(text):
        return text
    plain = text.replace(",", "")
    return float(plain) if "." in plain else int(plain)
