"""A verb of caovanctl: one file with one record, `VERB`. Nothing lists the verbs.

The verbs of caovanctl are the files of `caovand/cli` that have such a record. A verb with verbs of
its own is a folder, as `engine/`. The parser is made from the records, and help, completion and man
pages from the parser. Only the standard library is imported here: `caovanctl engine` has to run on
a machine that has nothing else yet.
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
SIMILAR = 0.5


class Group(IntEnum):
    """What a verb is for. Help lists the verbs in this order, and by name within a group."""

    LOOK = 0
    """Shows what the daemon and its engine do, and did."""
    CHANGE = 1
    """Changes what the engine does."""
    OFFLINE = 2
    """Needs no daemon."""
    SETUP = 3
    """Prepares a machine or a shell."""


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One verb; `run` returns the exit status, and is None if one of `package` must follow."""

    name: str
    help: str
    epilog: str
    """Examples; printed line by line as it is where it has several lines."""
    run: Callable[[argparse.Namespace], int] | None
    arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None
    description: str = ""
    """What --help says; by default `help` as a sentence."""
    group: Group = Group.LOOK
    effects: bool = False
    """Whether the verb changes something: losing its output is then a failure."""
    package: str = ""
    """The package whose files are this verb's own verbs."""

    def sentence(self) -> str:
        """The description, or what stands for it."""
        return self.description or f"{self.help[:1].upper()}{self.help[1:]}."

    def formatter(self) -> type[argparse.HelpFormatter]:
        """What prints the help."""
        if "\n" in self.epilog:
            return argparse.RawDescriptionHelpFormatter
        return argparse.HelpFormatter


class Parser(argparse.ArgumentParser):
    """A parser that names the verb that was meant; `verbs` are those it knows."""

    verbs: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        """End with exit status 2: what cannot be done, why, and the remedy."""
        unknown = INVALID_VERB.match(message)
        if unknown and self.verbs:
            close = get_close_matches(unknown[1], self.verbs, 1, SIMILAR)
            meant = f'did you mean "{close[0]}"? ' if close else ""
            text = f'cannot do "{unknown[1]}": there is no such verb; {meant}`{self.prog} --help`'
            self.exit(2, f"{self.prog}: {text} lists all\n")
        if message.startswith(UNRECOGNIZED):
            text = f"cannot use {message[len(UNRECOGNIZED) :]}: there is no such option"
            remedy = f"`{self.prog} VERB --help` lists those of a verb"
            self.exit(2, f"{self.prog}: {text}; {remedy}\n")
        super().error(message)


def verbs_of(package: str, only: str = "") -> list[Verb]:
    """The records of a package's files, in the order of help; of `only` alone where it is one."""
    folder = importlib.import_module(package)
    # Entry points are no verbs, and importing one that runs would make it twice.
    files = {found.name for found in pkgutil.iter_modules(folder.__path__)} - {"main", "__main__"}
    # The file of a verb bears its name.
    if (file := only.replace("-", "_")) in files and (verb := _record(package, file)):
        return [verb]
    found = [verb for file in files if (verb := _record(package, file))]
    return sorted(found, key=lambda verb: (verb.group, verb.name))


def _record(package: str, file: str) -> Verb | None:
    record = getattr(importlib.import_module(f"{package}.{file}"), "VERB", None)
    return record if isinstance(record, Verb) else None


def fill(parser: argparse.ArgumentParser, verb: Verb, only: str = "") -> None:
    """Give a parser a verb's arguments and the verbs below it, or `only` one of these."""
    verb.arguments(parser)
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
