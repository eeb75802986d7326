"""The chat template that the engine will use: the configured one, else the model's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from caovand.adapters.files import safe_files
from caovand.core.facts.inventory import ModelCard
from caovand.core.problem import Problem, reason_of

MAX_BYTES = 4 << 20
NO_CHAT = Problem(
    "",
    "the model has no chat template, so /v1/chat/completions answers with HTTP 400",
    "set [model] chat_template to a file, serve the instruct version of the model, or use"
    " /v1/completions",
)
WITHOUT_TEMPLATE = (
    "mistral", "ministral", "pixtral", "voxtral", "deepseek_v32", "deepseek_v4", "deepseek_vl",
    "deepseek_ocr", "kimi", "inkling", "minicpm", "paligemma", "blip", "unlimited", "chatglm",
)  # fmt: skip
"""Prefixes of model types whose chats a tokenizer formats, or a template of vLLM's own."""
INLINE = frozenset("{}\n")
"""vLLM takes a text that contains one of these as the template itself, unless a file has that
name."""


def with_template(card: ModelCard, wanted: str) -> ModelCard:
    """The card with the template that applies to clients' messages; `wanted` is a file or a text.

    An unreadable one leaves no template, and a note; so does a base model, which has none.
    """
    if not wanted:
        return replace(card, notes=(*card.notes, NO_CHAT)) if _is_base(card) else card
    try:
        return replace(card, chat_template=_read(wanted))
    except (OSError, ValueError) as problem:
        if INLINE & set(wanted):
            return replace(card, chat_template=wanted)
        note = Problem(
            f"read the chat template {wanted}",
            reason_of(problem),
            "choose a readable file, or set tool_call_parser and reasoning_parser in [server], "
            "which are derived from the template",
        )
        return replace(card, chat_template=None, notes=(*card.notes, note))


def _is_base(card: ModelCard) -> bool:
    known = bool(card.architecture) and card.gguf is None and card.task == "generate"
    return known and not card.chat_template and not card.model_type.startswith(WITHOUT_TEMPLATE)


def _read(path: str) -> str:
    return safe_files.read(Path(path), MAX_BYTES).decode(errors="replace")
