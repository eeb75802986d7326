"""Fills the pages in this folder from the code, or writes all of them as they are installed.

    python3 packaging/docs/make.py            rewrites the generated parts, in place
    python3 packaging/docs/make.py FOLDER     for the package: every page in one flat folder

A generated part stands between `<!-- made by make.py: NAME -->` and `<!-- end -->`; everything
around it is written by hand. What the parts list comes from packaging/reference.py.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

import reference  # noqa: E402  (from this checkout)

PART = re.compile(r"(<!-- made by make\.py: ([a-z]+) -->\n).*?(<!-- end -->)", re.S)
LINK = re.compile(r"!?\[([^]]*)\]\(([^()\s]+)\)")  # a picture stays in the sources


def installed_pages() -> Mapping[Path, str]:
    """The package's pages, with their names there: all in /usr/share/doc/caovan."""
    pages = (*sorted(HERE.glob("*.md")), *sorted(ROOT.glob("README*.md")), ROOT / "SECURITY.md")
    return {page: page.name for page in pages}


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|")


def table(*rows: tuple[str, ...]) -> Iterator[str]:
    """A table; the first row is its head."""
    head, *body = rows
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in body:
        yield re.sub(r"  +(?=\|)", " ", f"| {' | '.join(map(cell, row))} |")


def keys() -> Iterator[str]:
    """Every section and key of the configuration."""
    for section in reference.sections():
        yield f"\n### [{section.name}]\n\n{section.about}\n"
        rows = (
            (
                f"`{key.name}`",
                f"`{key.default}`",
                " ".join((key.help, *key.limits, *_example(key))),
            )
            for key in section.keys
        )
        yield from table(("key", "default", "meaning"), *rows)
    yield ""


def _example(key: reference.Key) -> Iterator[str]:
    if key.example:
        yield f"Example: `{key.example}`"


def rungs(kind: str = "vllm") -> Iterator[str]:
    """Every rung of an engine's ladder."""
    rows = ((f"`{name}`", does, key and f"`{key}`") for name, does, key in reference.rungs(kind))
    yield from table(("rung", "what it does", "key it may go below"), *rows)


def failures() -> Iterator[str]:
    """Every failure with its reaction and rungs."""
    entries = list(reference.failures())
    by_phase = {failure for failure, phase, *_ in entries if phase}
    rows = (
        (
            f"`{failure}`",
            phase or ("any other" if failure in by_phase else "any"),
            f"`{reaction}`",
            ", ".join(f"`{name}`" for name in names),
        )
        for failure, phase, reaction, names in entries
    )
    yield from table(("failure", "phase", "reaction", "rungs, best first"), *rows)


def states() -> Iterator[str]:
    """Every state."""
    rows = ((f"`{state.value}`", text) for state, text in reference.STATES.items())
    yield from table(("state", "meaning"), *rows)


def events() -> Iterator[str]:
    """Every event."""
    rows = ((f"`{name}`", text) for name, text in reference.events().items())
    yield from table(("event", "meaning"), *rows)


def edges() -> Iterator[str]:
    """Every transition."""
    rows = (
        (f"`{state.value}`", f"`{event}`", ", ".join(f"`{to.value}`" for to in targets))
        for state, event, targets in reference.edges()
    )
    yield from table(("in state", "on event", "next state"), *rows)


def verbs() -> Iterator[str]:
    """Every verb of caovanctl."""
    for verb in reference.verbs():
        yield f"\n### {verb.words}\n\n    caovanctl {verb.words}{verb.arguments}\n\n{verb.text}\n"
        if verb.options:
            yield from table(
                ("option", "meaning"), *((f"`{name}`", text) for name, text in verb.options)
            )
            yield ""
        if verb.examples:
            yield "Example: " + "; ".join(
                f"`{example.strip()}`" for example in verb.examples.split(";")
            )
    yield ""


PARTS: Mapping[str, Callable[[], Iterator[str]]] = {
    **{part.__name__: part for part in (keys, rungs, failures, states, events, edges, verbs)},
    **{kind: partial(rungs, kind) for kind in ("llamacpp", "ollama", "sglang")},
}


def fill(text: str) -> str:
    """A page with its generated parts as the code has them today."""

    def part(match: re.Match[str]) -> str:
        lines = "\n".join(PARTS[match[2]]())
        return f"{match[1]}{lines}\n{match[3]}"

    return PART.sub(part, text)


def relink(text: str, page: Path) -> str:
    """A page whose links work in the package: pages lie flat there, sources are absent."""
    there = installed_pages()

    def link(match: re.Match[str]) -> str:
        shown, (path, sign, anchor) = match[1], match[2].partition("#")
        if not path or "://" in path:
            return match[0]
        target = Path(os.path.normpath(page.parent / path))
        if target in there:
            return f"[{shown}]({there[target]}{sign}{anchor})"
        name = str(target.relative_to(ROOT))
        return f"{shown} (in the sources)" if shown == name else f"{shown} ({name} in the sources)"

    return LINK.sub(link, text)


def main(folder: Path | None) -> None:
    """Write everything."""
    if folder is None:
        for page in sorted(HERE.glob("*.md")):
            page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for page, name in installed_pages().items():
        text = relink(page.read_text(encoding="utf-8"), page)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit("usage: make.py [FOLDER]")
    main(Path(sys.argv[1]) if len(sys.argv) == 2 else None)
