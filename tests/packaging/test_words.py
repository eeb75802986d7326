"""Texts for users contain no word for which CONTRIBUTING's glossary has a better one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon_process import ROOT
from tests.documents import DOCUMENTS, FENCED, banned, name_of

MAN = ROOT / "packaging/man"
TEXTS = [
    *DOCUMENTS, ROOT / "SECURITY.md", ROOT / "etc/caovan.toml", ROOT / "plugin/README.md",
    ROOT / "packaging/engines/README.md", ROOT / "CHANGELOG.md",
    *(ROOT / "packaging/debian" / name for name in ("caovan.README.Debian", "caovan.default")),
]  # fmt: skip


def found(text: str) -> list[str]:
    """The banned words in a text, with what stands around them."""
    words = "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in banned())
    return [match[0] for match in re.finditer(rf"(?i).{{0,30}}\b(?:{words})\b.{{0,30}}", text)]


def written(page: Path) -> str:
    """A document without what it quotes: screens, which show the program's words, code, links."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`|\]\([^)\s]*\)", "", text)


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_no_text_for_users_has_a_banned_word(page: Path) -> None:
    assert found(written(page)) == []


def test_no_man_page_and_no_completion_has_one(tmp_path: Path) -> None:
    subprocess.run([sys.executable, MAN / "make.py", tmp_path], check=True)
    pages = {page.name: found(page.read_text()) for page in tmp_path.iterdir()}
    assert len(pages) > 6
    assert {name: words for name, words in pages.items() if words} == {}


def test_the_glossary_bans_words_and_a_banned_one_is_found() -> None:
    assert {"mend", "heed", "leavings", "what is not", "beside"} <= set(banned())
    assert len(found("How to Mend it.\nThe lowered\nplan.")) == 2
    assert found("Amendments are aforesaid and recommended.") == []
