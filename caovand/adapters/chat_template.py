"""The chat template that the engine will use: the one it is given, else the model's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from caovand.adapters import safe_files
from caovand.core import flags
from caovand.core.config import Config
from caovand.core.inventory import ModelCard

LARGEST = 4 << 20
INLINE = frozenset("{}\n")
"""A text with one of these is the template itself, as vLLM takes it, where no such file is."""


def effective(card: ModelCard, config: Config) -> ModelCard:
    """The card with the template that clients' messages go through, from a file or from the flag.

    One that cannot be read leaves none, and a note.
    """
    words = flags.values(flags.read(config.engine.extra_args))
    given = words.get("chat_template", config.model.chat_template)
    if not isinstance(given, str) or not given:
        return card
    try:
        return replace(card, chat_template=_read(given))
    except (OSError, ValueError) as problem:
        if INLINE & set(given):
            return replace(card, chat_template=given)
        why = getattr(problem, "strerror", None) or problem
        note = (
            f"cannot read the chat template {given}: {why}; name a file that this user may read, or"
            " set tool_call_parser and reasoning_parser in [server], which are chosen by it"
        )
        return replace(card, chat_template=None, notes=(*card.notes, note))


def _read(path: str) -> str:
    return safe_files.read(Path(path), LARGEST).decode(errors="replace")
