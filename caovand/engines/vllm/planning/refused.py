"""The operator's verbatim flags that an engine's own parser will refuse."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from caovand.core.facts.inventory import EngineInfo
from caovand.core.problem import Problem
from caovand.engines.vllm.planning import flags

WHERE = "[engine] extra_args"


def refused(
    words: Sequence[str], engine: EngineInfo, *, strays: bool = True
) -> tuple[Problem, ...]:
    """The flags among these words that this engine refuses; none if it was not asked.

    With `strays`, also words that belong to no flag.
    """
    if not engine.flags:
        return ()
    typed = flags.public(flags.read(words, engine.flags, engine.switches))
    judged = (flag for flag in typed if strays or flag.name)
    return tuple(found for flag in judged for found in _problem(flag, engine))


def unknown(flag: flags.Flag, engine: EngineInfo) -> str:
    """The flag as typed if this engine has none of that name, else ""."""
    typed = flag.words[0].partition("=")[0]
    known = not engine.flags or not flag.name or flags.is_known(typed, engine.flags)
    return "" if known else typed


def _problem(flag: flags.Flag, engine: EngineInfo) -> Sequence[Problem]:
    vllm, option = f"vLLM {engine.version}", flags.option(flag.name)
    if not flag.name:
        return (
            Problem(f'pass "{flag.value}"', "it belongs to no flag", f"remove it from {WHERE}"),
        )
    if word := unknown(flag, engine):
        close = difflib.get_close_matches(word, sorted(engine.flags), n=1)
        remedy = f"use {close[0]}" if close else f"remove it from {WHERE}"
        return (Problem(f"pass {word}", f"{vllm} has no such flag", remedy),)
    choices, texts = dict(engine.choices).get(option), flag.texts
    if choices and len(texts) == 1 and texts[0] not in choices:
        remedy = f"use one of {', '.join(choices)}"
        return (Problem(f"pass {option} {texts[0]}", f"{vllm} has no such value", remedy),)
    return ()
