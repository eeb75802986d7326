"""The lists of the pages, taken from the code: keys, verbs, states, failures and rungs.

packaging/man/make.py writes it as roff, packaging/docs/make.py as Markdown. This module depends on
neither format: text is plain, with `backquotes` around what is typed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from caovand.cli.parser import parser as parser_of_caovanctl  # noqa: E402  (from this checkout)
from caovand.core.config.key import APPLIES_AT_START  # noqa: E402
from caovand.core.config.schema import Config  # noqa: E402
from caovand.core.config.text import render  # noqa: E402
from caovand.core.healing.ladder import REACTIONS  # noqa: E402
from caovand.core.healing.rung import ANY  # noqa: E402
from caovand.core.lifecycle.state import State  # noqa: E402
from caovand.core.lifecycle.transitions import EDGES  # noqa: E402
from caovand.engines.registry import engine_of  # noqa: E402
from caovand.engines.vllm.healing.cures import CURES  # noqa: E402

STATES: Mapping[State, str] = {
    State.STOPPED: "The operator stopped the engine.",
    State.STARTING: "The daemon inspects the machine, makes the plan and starts the engine, "
    "which has not been proven yet.",
    State.SERVING: "Test completions have proven the engine.",
    State.RECYCLING: "The daemon is stopping the engine so that another can start.",
    State.BACKOFF: "Waiting before the next attempt.",
    State.HOLD: "Waiting for something outside: no engine is installed, no card answers, other "
    "processes use the cards' memory, the port is taken. The daemon continues on its own once "
    "the condition clears.",
    State.FAILED: "Another start cannot help until the operator changes something; `caovanctl "
    "status` shows what.",
    State.STOPPING: "The daemon is stopping the engine.",
}


@dataclass(frozen=True)
class Key:
    """A key of the configuration; `limits` are sentences about its bounds and choices."""

    name: str
    default: str
    help: str
    limits: tuple[str, ...]
    example: str


@dataclass(frozen=True)
class Section:
    """A table of the configuration."""

    name: str
    about: str
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class Verb:
    """A verb of caovanctl under its full name, with its arguments and options."""

    words: str
    arguments: str
    text: str
    options: tuple[tuple[str, str], ...]
    examples: str


def sections() -> Iterator[Section]:
    """Every section of the configuration with its keys."""
    shown = dict(re.findall(r"^(\w+) = (.*)$", render(), re.M))  # no key is in two sections
    for section in fields(Config):
        content = getattr(Config(), section.name)
        keys = tuple(
            Key(
                entry.name,
                shown[entry.name],
                entry.metadata["help"],
                tuple(_limits(entry.metadata)),
                entry.metadata["example"],
            )
            for entry in fields(content)
        )
        yield Section(section.name, str(type(content).__doc__), keys)


def _limits(meta: Mapping[str, Any]) -> Iterator[str]:
    if meta["low"] is not None:
        yield f"From {meta['low']} to {meta['high']}."
    if meta["choices"]:
        yield "One of " + ", ".join(meta["choices"]) + "."
    if meta["once"]:
        yield APPLIES_AT_START


def verbs(parser: argparse.ArgumentParser | None = None, prefix: str = "") -> Iterator[Verb]:
    """Every verb of caovanctl; a verb that only groups others is left out."""
    parser = parser or parser_of_caovanctl()
    group = _subparsers(parser)
    if group is None:
        return
    helps = {choice.dest: choice.help or "" for choice in group._choices_actions}
    for name, verb in group.choices.items():
        inner = _subparsers(verb)
        words = f"{prefix}{name}"
        if inner is None or not inner.required:
            text = verb.description or helps.get(name, "")
            text = text.removeprefix(f"caovanctl {words}: ")
            text = text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
            examples = re.sub(r"^examples?: ", "", verb.epilog or "")
            yield Verb(words, _arguments(verb), text, tuple(_options(verb)), examples)
        yield from verbs(verb, f"{words} ")


def _subparsers(parser: argparse.ArgumentParser) -> Any:
    found = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return next(found, None)


def _arguments(verb: argparse.ArgumentParser) -> str:
    words = ""
    for action in verb._actions:
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction):
            word = _metavar(action)
            words += f" [{word}]" if action.nargs in ("?", "*") else f" {word}"
    return words


def _options(verb: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in verb._actions:
        if action.option_strings and action.dest != "help":
            metavar = "" if action.nargs == 0 else f" {_metavar(action)}"
            text = (action.help or "").replace("%(default)s", str(action.default))
            yield ", ".join(action.option_strings) + metavar, text


def _metavar(action: argparse.Action) -> str:
    """The placeholder for the value of an argument."""
    if isinstance(action.metavar, str):
        return action.metavar
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def edges() -> Iterator[tuple[State, str, tuple[State, ...]]]:
    """Each row of the state machine: in this state, this event, leads to one of these."""
    for (state, event), (_, targets) in EDGES.items():
        yield state, event.__name__, tuple(sorted(targets, key=list(State).index))


def events() -> Mapping[str, str]:
    """Every event of the state machine, and what it means."""
    found = {event.__name__: str(event.__doc__) for _, event in EDGES}
    return {name: found[name].partition("\n")[0] for name in sorted(found)}


def failures() -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Each failure: its id, the phase (empty for all others), the reaction, the cures in order."""
    for (failure, phase), names in CURES.items():
        reaction = REACTIONS[failure]
        again = f" {reaction.patience}" if reaction.patience else ""
        yield failure, "" if phase == ANY else phase, reaction.kind + again, names


def rungs(kind: str) -> Iterator[tuple[str, str, str]]:
    """Each rung of this engine's ladder: its name, what it does, the key it goes below."""
    for rung in engine_of(kind).healing.rungs:
        yield rung.name, rung.does, rung.key
