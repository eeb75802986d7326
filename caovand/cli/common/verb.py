"""Define a verb of caovanctl: one file with one record, `VERB`. There is no list of verbs.

The verbs are the files in `caovand/cli` with such a record. A verb with subcommands is a folder,
such as `engine/`. The parser is built from the records; help, completion and man pages come from
the parser. Only the standard library is imported here: `caovanctl engine` has to run on a machine
where nothing else is installed yet.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import NoReturn

METAVAR = "VERB"
INVALID_VERB = re.compile(rf"argument {METAVAR}: invalid choice: '(.*?)' \(choose from ")
UNRECOGNIZED = "unrecognized arguments: "
MIN_SIMILARITY = 0.5


class Group(IntEnum):
    """The purpose of a verb. Help lists groups in this order, and verbs by name within a group."""

    LOOK = 0
    """Shows the current and past activity of the daemon and its engine."""
    CHANGE = 1
    """Changes the engine's activity."""
    OFFLINE = 2
    """Needs no daemon."""
    SETUP = 3
    """Prepares a machine or a shell."""


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb; `run` returns the exit status, and is None if a subcommand from `package` is
    required."""

    name: str
    help: str
    epilog: str
    """Examples; several lines are printed verbatim."""
    run: Callable[[argparse.Namespace], int] | None
    arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None
    json: str = ""
    """The help of --json, the verb's last option; "" if it has none."""
    description: str = ""
    """The text of --help; by default `help` as a sentence."""
    group: Group = Group.LOOK
    effects: bool = False
    """Whether the verb changes something, so that losing its output counts as a failure."""
    package: str = ""
    """The package with this verb's subcommands."""

    def sentence(self) -> str:
        """The description or its default."""
        return self.description or f"{self.help[:1].upper()}{self.help[1:]}."

    def formatter(self) -> type[argparse.HelpFormatter]:
        """The formatter that prints the help."""
        if "\n" in self.epilog:
            return argparse.RawDescriptionHelpFormatter
        return argparse.HelpFormatter


class Parser(argparse.ArgumentParser):
    """A parser that suggests the intended verb; `verbs` are all verbs."""

    verbs: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        """Exit with status 2, naming what cannot be done, why, and the remedy."""
        unknown = INVALID_VERB.match(message)
        if unknown and self.verbs:
            close = get_close_matches(unknown[1], self.verbs, 1, MIN_SIMILARITY)
            meant = f'did you mean "{close[0]}"? ' if close else ""
            text = f'cannot do "{unknown[1]}": no such verb; {meant}`{self.prog} --help`'
            self.exit(2, f"{self.prog}: {text} lists all\n")
        if message.startswith(UNRECOGNIZED):
            text = f"cannot use {message[len(UNRECOGNIZED) :]}: no such option"
            remedy = f"`{self.prog} VERB --help` lists those of a verb"
            self.exit(2, f"{self.prog}: {text}; {remedy}\n")
        super().error(message)


def verbs_of(package: str, only: str = "") -> list[Verb]:
    """The package's verb records in help order; only the one named `only`, if it is a verb."""
    folder = importlib.import_module(package)
    # Entry points are no verbs, and importing a module that runs as a program would load it twice.
    files = {module.name for module in pkgutil.iter_modules(folder.__path__)} - {"main", "__main__"}
    # A verb's file has its name.
    if (file := only.replace("-", "_")) in files and (verb := _record(package, file)):
        return [verb]
    verbs = [verb for file in files if (verb := _record(package, file))]
    return sorted(verbs, key=lambda verb: (verb.group, verb.name))


def _record(package: str, file: str) -> Verb | None:
    record = getattr(importlib.import_module(f"{package}.{file}"), "VERB", None)
    return record if isinstance(record, Verb) else None


def fill(parser: argparse.ArgumentParser, verb: Verb, only: str = "") -> None:
    """Add a verb's arguments and subcommands to a parser, or `only` one of the subcommands."""
    verb.arguments(parser)
    if verb.json:
        parser.add_argument("--json", action="store_true", help=verb.json)
    if verb.run is not None:
        parser.set_defaults(run=verb.run, effects=verb.effects)
    if not verb.package:
        return
    below = parser.add_subparsers(metavar=METAVAR, required=verb.run is None)
    inner_verbs = verbs_of(verb.package, only)
    if isinstance(parser, Parser):
        parser.verbs = [inner.name for inner in inner_verbs]
    for inner in inner_verbs:
        made = below.add_parser(
            inner.name,
            help=inner.help,
            description=inner.sentence(),
            epilog=inner.epilog,
            formatter_class=inner.formatter(),
        )
        fill(made, inner)
