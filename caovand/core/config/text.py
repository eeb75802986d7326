"""Render a configuration as a TOML file with every key; `parser` reads it back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from caovand.core.config.key import APPLIES_AT_START, StringPairs, entries_of
from caovand.core.config.schema import Config, hints

DEFAULTS = Config()


def toml(value: Any) -> str:
    """Format a value as TOML; None is "auto"."""
    if value is None:
        return '"auto"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return "{ " + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value) + " }"
    if is_dataclass(value):
        settings = {entry.name: getattr(value, entry.name) for entry in fields(value)}
        return toml({name: setting for name, setting in settings.items() if setting is not None})
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(entry) for entry in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, str):
        # TOML has JSON's escapes, but forbids an unescaped DEL, which JSON allows.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)


def render(config: Config = DEFAULTS) -> str:
    """Render `config` as a commented TOML file with every key; `parse` reads it back."""
    lines = [
        "# caovan: which model to serve, where, and what caovand may change to keep serving it.",
        '# Every key is listed with its default; "auto" lets caovand decide (see `caovanctl '
        "plan`).",
        "# Check an edit with `caovanctl check-config`, apply it with `sudo caovanctl reload`.",
    ]
    for section in fields(Config):
        content = getattr(config, section.name)
        lines += ["", f"# {type(content).__doc__}", f"[{section.name}]"]
        for entry in fields(content):
            meta = entry.metadata
            limits = (
                f" From {toml(float(meta['low']))} to {toml(float(meta['high']))}."
                if meta["low"] is not None
                else ""
            )
            allowed = (
                f" One of {', '.join(meta['choices'])}."
                if meta["choices"] and entry.name != "mode"
                else ""
            )
            once = f" {APPLIES_AT_START}" if meta["once"] else ""
            example = f" Example: {meta['example']}" if meta["example"] else ""
            lines.append(f"# {meta['help']}{limits}{allowed}{once}{example}")
            value = getattr(content, entry.name)
            kind = hints(type(content))[entry.name]
            empty_table = not value and (kind == StringPairs or entries_of(kind))
            lines.append(f"{entry.name} = {'{}' if empty_table else toml(value)}")
    return "\n".join(lines) + "\n"
