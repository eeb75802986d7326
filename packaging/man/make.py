"""Writes the man pages and completions into a folder: python3 packaging/man/make.py FOLDER

The pages here are templates. The lists that would lag behind the code come from the code:
`@VERBS@` from caovanctl's parser, `@KEYS@` from the configuration, `@VERSION@`; `@DATE@` is that
of the release in packaging/debian/changelog.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from caovand import __version__  # noqa: E402  (from this checkout)
from caovand.cli import main as caovanctl  # noqa: E402
from caovand.core.config import Config, render  # noqa: E402


def escaped(text: str) -> str:
    """Text as roff takes it: no control line, no escape, dashes that can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def keys() -> Iterator[str]:
    """Every section and key of the configuration."""
    shown = dict(re.findall(r"^(\w+) = (.*)$", render(), re.M))  # no key is in two sections
    for section in fields(Config):
        content = getattr(Config(), section.name)
        yield f".SS [{section.name}]"
        yield escaped(str(type(content).__doc__))
        for entry in fields(content):
            meta = entry.metadata
            default = escaped(shown[entry.name]).replace('"', "\\(dq")
            yield f'.TP\n.BR {entry.name} " = {default}"'
            yield escaped(meta["help"])
            if meta["low"] is not None:
                yield escaped(f"From {meta['low']} to {meta['high']}.")
            if meta["choices"]:
                yield escaped("One of " + ", ".join(meta["choices"]) + ".")
            if meta["example"]:
                yield escaped(f"Example: {meta['example']}")


def verbs(parser: argparse.ArgumentParser, prefix: str = "") -> Iterator[str]:
    """Every verb with its arguments; verbs of a verb under their full name."""
    group = subparsers(parser)
    if group is None:
        return
    helps = {choice.dest: choice.help or "" for choice in group._choices_actions}
    for name, verb in group.choices.items():
        inner = subparsers(verb)
        words = f"{prefix}{name}"
        if inner is not None and inner.required:
            yield from verbs(verb, f"{words} ")
            continue
        yield f".TP\n.B {escaped(words)}{escaped(usage(verb))}"
        text = verb.description or helps.get(name, "")
        text = text.removeprefix(f"caovanctl {words}: ")
        yield escaped(text[:1].upper() + text[1:] + ("" if text.endswith(".") else "."))
        options = [a for a in verb._actions if a.option_strings and a.dest != "help"]
        for action in options:
            spelled = ", ".join(action.option_strings)
            metavar = "" if action.nargs == 0 else f" {shown_metavar(action)}"
            yield f".RS\n.TP\n.B {escaped(spelled + metavar)}"
            yield escaped((action.help or "").replace("%(default)s", str(action.default))) or "\\&"
            yield ".RE"
        if inner is not None:
            yield from verbs(verb, f"{words} ")


def shown_metavar(action: argparse.Action) -> str:
    """What stands for an option's value."""
    if isinstance(action.metavar, str):
        return action.metavar
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def usage(verb: argparse.ArgumentParser) -> str:
    """The positional arguments of a verb."""
    words = ""
    for action in verb._actions:
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction):
            word = shown_metavar(action)
            words += f" [{word}]" if action.nargs in ("?", "*") else f" {word}"
    return words


def subparsers(parser: argparse.ArgumentParser) -> Any:
    """The verbs of a parser, None where it has none."""
    found = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return next(found, None)


def completion(shell: str) -> str:
    """What `caovanctl completion SHELL` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        caovanctl.main(["completion", shell])
    return out.getvalue()


def release_date() -> str:
    """The day of the newest release, year first."""
    changelog = (HERE.parent / "debian/changelog").read_text(encoding="utf-8")
    found = re.search(r"^ -- .*  (.*)$", changelog, re.M)
    assert found is not None
    return parsedate_to_datetime(found[1]).date().isoformat()


def page(template: Path) -> str:
    """One finished page."""
    text = template.read_text(encoding="utf-8")
    text = text.replace("@VERSION@", __version__).replace("@DATE@", release_date())
    for mark, lines in (("@KEYS@", keys), ("@VERBS@", lambda: verbs(caovanctl.parser()))):
        if mark in text:
            text = text.replace(mark, "\n".join(lines()))
    return text


def main(folder: Path) -> None:
    """Write everything."""
    folder.mkdir(parents=True, exist_ok=True)
    for template in sorted(HERE.glob("*.[1-9]")):
        (folder / template.name).write_text(page(template), encoding="utf-8")
    (folder / "caovanctl").write_text(completion("bash"), encoding="utf-8")
    (folder / "_caovanctl").write_text(completion("zsh"), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make.py FOLDER")
    main(Path(sys.argv[1]))
