"""Explain invalid TOML to people who do not know its grammar."""

from __future__ import annotations

import re
from dataclasses import fields

from caovand.core.config.schema import Config, hints

POSITION = re.compile(r" \(at line (\d+), column \d+\)$")
ASSIGNMENT = re.compile(r"\s*([A-Za-z0-9_-]+)\s*=\s*(.*)")
SECTION = re.compile(r"\s*\[+\s*([A-Za-z0-9_.-]+)")
TYPOGRAPHIC = "“”„‟‘’‚‛«»"
GENERAL = 'write KEY = VALUE: text in "quotes", numbers and true or false without'


def explain_syntax_error(text: str, message: str) -> str:
    """The line, the error in it and the remedy; `message` is the parser's.

    Values are never repeated: they may be passwords.
    """
    place = POSITION.search(message)
    reason = POSITION.sub("", message)
    if place is None:
        return f"{reason}; {GENERAL}"
    number = int(place[1])
    line = text.split("\n")[number - 1].strip()
    return f"line {number}: {_wrong(line, reason)}"


def _wrong(line: str, reason: str) -> str:
    assignment, section = ASSIGNMENT.match(line), SECTION.match(line)
    if section and "twice" in reason:
        return f"[{section[1]}] appears twice; move its keys to the first one"
    # "hex value": TOML 1.1, which newer parsers accept, has the escape \x.
    if any(mark in reason for mark in ("backslash", "Unescaped", "hex value")):
        return "a backslash in \"quotes\" begins an escape; write it twice, or use 'single quotes'"
    if assignment is None:
        return f"{reason}; {GENERAL}"
    key, value = assignment[1], assignment[2]
    known = {entry.name for section in hints(Config).values() for entry in fields(section)}
    name, example = (f'"{key}"', key) if key in known else ("the key", "KEY")
    if "overwrite" in reason:
        return f"{name} is set twice; remove one of the two"
    if any(mark in value.partition("#")[0] for mark in TYPOGRAPHIC):
        return f'{name} has typographic quotes; write {example} = "..."'
    if not value or value[0] == "#":
        return f"{name} has no value; write one after the =, or remove the line"
    if value.partition("#")[0].strip().lower() in ("true", "false", "yes", "no", "on", "off"):
        return f"the value of {name} must be true or false, in lower case and without quotes"
    if value[0] not in "\"'[{":
        return f'the value of {name} is neither a number nor in quotes; write {example} = "..."'
    if "Illegal character" in reason:
        return f'the quotes of {name} are not closed; write {example} = "..." on one line'
    return f"{reason}; {GENERAL}"
