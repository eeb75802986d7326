"""Commands that messages, documents and pages suggest exist."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caovand.cli.parser import parser
from caovand.core.config.parser import parse
from tests.daemon_process import ROOT
from tests.documents import DOCUMENTS, READMES, name_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PLACES = [
    *sorted((ROOT / "caovand").rglob("*.py")),
    *(ROOT / name for name in ("CONTRIBUTING.md", "Makefile")),
    *DOCUMENTS,
    ROOT / "packaging/debian/caovan.README.Debian",
    ROOT / "packaging/engines/README.md",
    *sorted((ROOT / "packaging/man").glob("*.[1-9]")),
]
# A command as such: in backquotes, after sudo, or at the start of a line or of a text.
COMMAND = re.compile(
    r"(?:`|\bsudo |^[ \t$]*|[\"'] ?|: |; |&& )caovanctl (?!and )([a-z][a-z-]*)([^`\n\"|&]*)", re.M
)


def verbs(of: argparse.ArgumentParser) -> dict[str, Any]:
    """The verbs of a parser."""
    found: list[Any] = [a for a in of._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Every command in a text: its verb and the rest."""
    for match in COMMAND.finditer(text.replace("\\-", "-")):
        yield match[1], match[2]


@pytest.mark.parametrize("place", PLACES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_is_named_exists(place: Path) -> None:
    known = verbs(parser())
    for verb, rest in commands(place.read_text(encoding="utf-8")):
        assert verb in known, f"caovanctl {verb}{rest}"
        words = rest.split()
        if words and verbs(known[verb]) and re.fullmatch(r"[a-z]+", words[0]):
            assert words[0] in verbs(known[verb]), f"caovanctl {verb}{rest}"
        for option in re.findall(r"(?<!\S)--[a-z-]+", rest):
            of = verbs(known[verb]).get(words[0], known[verb])
            assert option in of._option_string_actions or verb in ("serve", "doctor", "plan"), (
                f"caovanctl {verb}{rest}"
            )


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_configuration_that_is_shown_is_valid(document: Path) -> None:
    for block in configurations(document):
        parse(tomllib.loads(block))


def test_the_readmes_and_the_page_of_the_configuration_show_some() -> None:
    for document in (*READMES, ROOT / "packaging/docs/configuration.md"):
        assert configurations(document)


def configurations(document: Path) -> list[str]:
    """The configuration files that a document shows."""
    return re.findall(r"```toml\n(.*?)```", document.read_text(encoding="utf-8"), re.S)


def test_there_are_such_commands() -> None:
    found = [c for place in PLACES for c in commands(place.read_text(encoding="utf-8"))]
    assert {"engine", "status", "retry", "reload", "doctor"} <= {verb for verb, _ in found}
    assert len(found) > 50
