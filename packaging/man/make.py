"""Writes the man pages and completions into a folder: python3 packaging/man/make.py FOLDER

The pages here are templates. The lists that would lag behind the code come from the code
(packaging/reference.py): `@VERBS@`, `@KEYS@`, `@STATES@`; so do `@VERSION@`, and `@DATE@`, which
is that of the release in packaging/debian/changelog.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import reference  # noqa: E402  (from this checkout)

from caovand import __version__  # noqa: E402
from caovand.cli import main as caovanctl  # noqa: E402


def escaped(text: str) -> str:
    """Text as roff takes it: no control line, no escape, dashes that can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def keys() -> Iterator[str]:
    """Every section and key of the configuration."""
    for section in reference.sections():
        yield f".SS [{section.name}]"
        yield escaped(section.about)
        for key in section.keys:
            default = escaped(key.default).replace('"', "\\(dq")
            yield f'.TP\n.BR {key.name} " = {default}"'
            yield escaped(key.help)
            yield from map(escaped, key.limits)
            if key.example:
                yield escaped(f"Example: {key.example}")


def verbs() -> Iterator[str]:
    """Every verb with its arguments; verbs of a verb under their full name."""
    for verb in reference.verbs():
        yield f".TP\n.B {escaped(verb.words)}{escaped(verb.arguments)}"
        yield escaped(verb.text)
        for spelled, text in verb.options:
            yield f".RS\n.TP\n.B {escaped(spelled)}"
            yield escaped(text) or "\\&"
            yield ".RE"


def states() -> Iterator[str]:
    """Every state of the daemon."""
    for state, text in reference.STATES.items():
        yield f".TP\n.B {state.value}\n{escaped(text)}"


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
    for mark, lines in (("@KEYS@", keys), ("@VERBS@", verbs), ("@STATES@", states)):
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
