"""The words people read: plain English, and one word for one thing.

Words of the glossary's "not" column are in no text that caovanctl, the installer of engines or the
answer to a request can print.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon_process import ROOT

FILES = [
    *sorted((ROOT / "caovand/cli").rglob("*.py")),
    *sorted((ROOT / "caovand/adapters/engine_install").glob("*.py")),
    *(ROOT / "caovand/daemon").glob("*verbs.py"),
    ROOT / "caovand/daemon/requests/arguments.py",
]
NOT = re.compile(
    r"\b(mend\w*|said|told|held|given|beside|heed|forgo|looks? at|looking now|of that|what is not"
    r"|leavings|litter|leftovers?|neighbours?|lowered|anew|whoever)\b",
    re.I,
)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every text of a module that is no docstring and no single word, such as a key."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in prose and " " in node.value.strip():
            yield node.lineno, node.value


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_has_a_word_of_the_not_column(path: Path) -> None:
    assert [(line, text) for line, text in texts(path) if NOT.search(text)] == []


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""The file given."""\nx = f"mend it: {1} now"\ny = "told"\n')
    assert [bool(NOT.search(text)) for _, text in texts(tmp_path / "a.py")] == [True]
