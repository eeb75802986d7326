"""The documentation: the READMEs, the pages they link to, and the screens they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.daemon_process import ROOT

PAGES = sorted((ROOT / "packaging/docs").glob("*.md"))
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
DOCUMENTS = [*READMES, *PAGES]
CHINESE = [path for path in DOCUMENTS if path.name.endswith(".zh-CN.md")]
ENGLISH = [path for path in DOCUMENTS if path not in CHINESE]
FENCED = re.compile(r"^```.*?^```$", re.S | re.M)


def name_of(path: Path) -> str:
    """A document's name in test ids."""
    return str(path.relative_to(ROOT))


def blocks(document: Path) -> Iterator[list[str]]:
    """The lines of each block of a document, without the "…" that marks omitted lines."""
    for block in document.read_text(encoding="utf-8").split("```")[1::2]:
        yield [kept for line in block.splitlines() if (kept := line.rstrip("… "))]


def screens(document: Path) -> Iterator[tuple[str, list[str]]]:
    """Each caovanctl command in a document, in order, with the output shown for it."""
    for block in blocks(document):
        for part in re.split(r"^(?=\$ )", "\n".join(block), flags=re.M):
            command, *output = part.splitlines() or [""]
            if command.startswith("$ caovanctl "):
                yield command.removeprefix("$ caovanctl "), output


def banned() -> list[str]:
    """The words banned from texts for users: the last column of the glossary."""
    glossary = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Words\n")[2]
    rows = re.findall(r"^\|.*\|([^|]*)\|$", glossary, re.M)
    return [word for row in rows for word in re.findall(r"`([^`]+)`", row)]
