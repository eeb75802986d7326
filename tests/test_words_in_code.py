"""No text for users, docstring, comment or name contains a word that CONTRIBUTING bans."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator

from tests.daemon_process import ROOT
from tests.documents import banned
from tests.source_trees import offenders, source

PACKAGE = ROOT / "caovand"
PRODUCT = ("caovand", "plugin", "csrc")
"""The folders whose docstrings, comments and names are checked."""
SENTENCE = re.compile(r"\w[,;:.]? +\S")
IN_DOCSTRINGS = frozenset({"of that", "what is not", "of what"})
"""Banned in texts for users alone."""
ALLOWED = frozenset({
    "held_s",  # on the wire between the nodes of a cluster
    "neighbours.py",  # a program's name: requests that share a batch
})  # fmt: skip


def _pattern(words: Iterable[str]) -> re.Pattern[str]:
    choice = "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in words)
    return re.compile(rf"(?i)\b(?:{choice})\b")


WORDS = _pattern(banned())
DOCSTRING_WORDS = _pattern(word for word in banned() if word not in IN_DOCSTRINGS)


def sentences(code: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string of several words, except docstrings and raw strings.

    Raw strings are patterns: their words are those of vLLM, of libraries and of the kernel.
    """
    tree, lines = ast.parse(code), code.encode().split(b"\n")
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
    for node in ast.walk(tree):
        if node in skipped or not isinstance(node, (ast.Constant, ast.JoinedStr)):
            continue
        text = written(node)
        raw = lines[node.lineno - 1][node.col_offset :].lstrip(b"fF")[:1] in (b"r", b"R")
        if SENTENCE.search(text) and not raw:
            yield node.lineno, text


def docstrings(code: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string that stands alone: of modules, functions, fields, constants."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, written(node.value)


def comments(code: str) -> Iterator[tuple[int, str]]:
    """Line and text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def names(code: str) -> Iterator[tuple[int, str]]:
    """Line and words of each name that the code defines: "_given upFor" is "given up For"."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            line, name = node.lineno, node.name
        elif isinstance(node, ast.arg):
            line, name = node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            line, name = node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            line, name = node.lineno, node.attr
        else:
            continue
        if name not in ALLOWED:
            yield line, re.sub(r"_+|(?<=[a-z])(?=[A-Z])", " ", name).strip()


def written(node: ast.Constant | ast.JoinedStr) -> str:
    """The text of a literal, "…" in the place of each value."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
    return node.value if isinstance(node.value, str) else ""


def found(code: str) -> list[str]:
    """The sentences with a banned word, each with its line."""
    texts = ((line, text) for line, text in sentences(code) if WORDS.search(text))
    return [f"{line}: {text}" for line, text in texts]


def test_no_text_of_the_code_has_a_banned_word() -> None:
    files = (path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py")))
    assert offenders(files, lambda name: found(source(PACKAGE / name))) == {}


def in_docstrings(code: str) -> list[str]:
    """The docstrings, comments and names with a banned word, each with its line."""
    texts = (*docstrings(code), *comments(code), *names(code))
    return [f"{line}: {text}" for line, text in texts if DOCSTRING_WORDS.search(_plain(text))]


def _plain(text: str) -> str:
    return re.sub("|".join(map(re.escape, ALLOWED)), "", text)


def test_no_docstring_comment_or_name_has_a_banned_word() -> None:
    files = (path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py")))
    places = (path.relative_to(ROOT).as_posix() for path in files)
    assert offenders(places, lambda name: in_docstrings(source(ROOT / name))) == {}


def test_a_banned_word_is_found_however_the_text_is_written() -> None:
    for text in (
        '"mend the file"',
        'f"{a} mend {b} now"',
        '"what " "is not"',
        '("a", "held by b")',
    ):
        assert len(found(f"print({text})")) == 1, text


def test_what_no_user_reads_is_left_out() -> None:
    for text in ('"""Mend the file."""', '{"held": 1}', 're.compile(r"held by \\d")', "# mend it"):
        assert found(text) == [], text


def test_a_banned_word_is_found_in_docstrings_comments_and_names() -> None:
    for code in (
        'def f():\n    """Mend it."""',
        "x = 1  # mend it",
        "def was_told(): ...",
        "class SaidSo: ...",
        "given = 1",
        "def f(held): ...",
        "x.beside = 1",
    ):
        assert len(in_docstrings(code)) == 1, code
    for code in ("held_s = 1", "telling = 1", "x = told", '"""`neighbours.py` checks it."""'):
        assert in_docstrings(code) == [], code
