"""The chat template that the engine will use: the configured one, else the model's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from caovand.adapters import safe_files
from caovand.core.facts.inventory import ModelCard
from caovand.core.problem import Problem

MAX_BYTES = 4 << 20
INLINE = frozenset("{}\n")
"""vLLM takes a text with one of these as the template itself, unless a file has that name."""


def effective(card: ModelCard, wanted: str) -> ModelCard:
    """The card with the template applied to clients' messages; `wanted` is a file or a text.

    An unreadable one leaves no template, and a note.
    """
    if not wanted:
        return card
    try:
        return replace(card, chat_template=_read(wanted))
    except (OSError, ValueError) as problem:
        if INLINE & set(wanted):
            return replace(card, chat_template=wanted)
        why = getattr(problem, "strerror", None) or problem
        note = Problem(
            f"read the chat template {wanted}",
            str(why),
            "name a readable file, or set tool_call_parser and reasoning_parser in [server], which"
            " are chosen by it",
        )
        return replace(card, chat_template=None, notes=(*card.notes, note))


def _read(path: str) -> str:
    return safe_files.read(Path(path), MAX_BYTES).decode(errors="replace")
