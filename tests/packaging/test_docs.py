"""The documents: links lead somewhere, generated parts are today's, the package has the pages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from caovand.cli import cluster, engine, model
from caovand.cli.common.verb import verbs_of
from caovand.core.config.schema import Config
from caovand.core.healing.failure import FAILURES
from caovand.core.lifecycle.state import State
from caovand.core.lifecycle.transitions import EDGES
from caovand.engines.registry import MODULES, engine_of
from tests.daemon_process import ROOT
from tests.documents import DOCUMENTS, FENCED, PAGES, READMES, name_of

MAKE = ROOT / "packaging/docs/make.py"
LINKED = sorted({
    *DOCUMENTS, ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md",
    ROOT / "plugin/README.md", *(ROOT / "csrc").glob("*.md"),
    *(ROOT / "packaging").glob("*/README.md"), *(ROOT / "tests").glob("*/README.md"),
})  # fmt: skip
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """A document without its blocks of code and its `code`."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> Iterator[str]:
    """What a link into this page may name, as GitHub makes it of the headings."""
    seen: Counter[str] = Counter()
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        yield f"{slug}-{seen[slug]}" if seen[slug] else slug
        seen[slug] += 1


def broken(page: Path) -> list[str]:
    """The links of a document that lead nowhere; those into the network are not followed."""
    found = []
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = page if not path else Path(os.path.normpath(page.parent / path))
        missing = not target.is_relative_to(ROOT) if page.is_relative_to(ROOT) else False
        if missing or not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as it is in the package."""
    folder = tmp_path_factory.mktemp("doc")
    subprocess.run([sys.executable, MAKE, folder], check=True)
    return folder


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_there_are_such_links() -> None:
    links = [link for page in LINKED for link in LINK.findall(prose(page))]
    assert len(links) > 80
    assert any("#" in link for link in links)


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b` c!\n[1](#a-b-c) [2](#a) [3](page.md#a-b-c) [4](none.md) [5](http://x)")
    assert broken(page) == ["#a", "none.md"]


@pytest.fixture(scope="module")
def filled() -> dict[str, str]:
    """Every page as `make docs` would write it today."""
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import make;"
        " print(json.dumps({p.name: make.fill(p.read_text()) for p in make.HERE.glob('*.md')}))"
    )
    command = [sys.executable, "-X", "utf8", "-c", code, MAKE.parent]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_generated_parts_are_those_of_today(page: Path, filled: dict[str, str]) -> None:
    assert page.read_text(encoding="utf-8") == filled[page.name], "make docs"


def test_every_state_transition_failure_and_rung_has_a_row() -> None:
    states = (ROOT / "packaging/docs/states.md").read_text()
    healing = (ROOT / "packaging/docs/healing.md").read_text()
    assert set(re.findall(r"^\| `([A-Z]+)` \| [^`]", states, re.M)) == {s.value for s in State}
    rows = re.findall(r"^\| `([A-Z]+)` \| `(\w+)` \|", states, re.M)
    assert rows == [(state.value, event.__name__) for state, event in EDGES]
    for name in (*FAILURES, *(name for one in MODULES for name in engine_of(one).healing.by_name)):
        assert f"| `{name}` |" in healing, name


def test_the_chinese_guide_explains_every_state_and_failure() -> None:
    guide = (ROOT / "packaging/docs/guide.zh-CN.md").read_text(encoding="utf-8")
    first = re.findall(r"^\| `([\w-]+)` \|.*\|$", guide, re.M)
    assert {state.value for state in State} <= set(first)
    assert [name for name in first if name in FAILURES] == list(FAILURES)


@pytest.mark.parametrize("name", ["command-line.md", "guide.zh-CN.md"])
def test_the_tables_name_every_verb_of_a_family(name: str) -> None:
    text = (ROOT / "packaging/docs" / name).read_text(encoding="utf-8")
    for family in (cluster, engine, model):
        verbs = {verb.name for verb in verbs_of(family.VERB.package)}
        (row,) = re.findall(rf"^\| `{family.VERB.name} ([^`]*)` \|", text, re.M)
        assert set(row.split("\\|")) == verbs


@pytest.mark.parametrize("name", ["command-line.md", "guide.zh-CN.md"])
def test_the_tables_name_every_verb(name: str) -> None:
    text = (ROOT / "packaging/docs" / name).read_text(encoding="utf-8")
    (table,) = re.findall(r"(?:^\|.*\n)*^\| `status` .*\n(?:^\|.*\n)*", text, re.M)
    named = {words.split()[0] for words in re.findall(r"`([a-z][^`]*)`", table)}
    assert {verb.name for verb in verbs_of("caovand.cli")} <= named


@pytest.mark.parametrize("name", ["configuration.md", "command-line.md", "guide.zh-CN.md"])
def test_what_a_reload_says_of_the_daemons_next_start_has_every_section(name: str) -> None:
    text = (ROOT / "packaging/docs" / name).read_text(encoding="utf-8")
    said = "[control]" + text.partition("[control]")[2].partition("[watch]")[0] + "[watch]"
    for section in fields(Config):
        keys = fields(getattr(Config(), section.name))
        assert any(key.metadata["once"] for key in keys) == (f"[{section.name}]" in said)


def test_every_page_is_linked_from_both_readmes() -> None:
    for readme in READMES:
        text = readme.read_text(encoding="utf-8")
        for page in PAGES:
            of_the_other = page.name.endswith(".zh-CN.md") and readme.name == "README.md"
            assert of_the_other or f"](packaging/docs/{page.name})" in text, page.name


@pytest.mark.parametrize(
    ("name", "most"), [("README.md", 150), ("README.zh-CN.md", 150), ("csrc/README.md", 120)]
)
def test_what_is_read_first_stays_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= most


def test_the_package_has_every_page_and_their_links_work_there(installed: Path) -> None:
    names = {path.name for path in installed.iterdir()}
    assert names == {path.name for path in (*DOCUMENTS, ROOT / "SECURITY.md")}
    for page in installed.glob("*.md"):
        assert broken(page) == [], page.name
        assert "packaging/docs" not in "".join(LINK.findall(prose(page)))


def test_the_package_says_where_what_it_lacks_is(installed: Path) -> None:
    assert "a model (csrc/README.md in the sources)" in (installed / "README.md").read_text()
    assert "contributing (CONTRIBUTING.md in the sources)" in (installed / "README.md").read_text()
    assert (
        "\nThe page while the engine serves (packaging/docs/pictures/"
        in (installed / "page.md").read_text()
    )


def test_the_package_takes_the_pages_from_where_they_are_made() -> None:
    debian = ROOT / "packaging/debian"
    pages, *others = (debian / "caovan.docs").read_text().split()
    assert pages == "debian/generated/docs/*.md"
    assert all((ROOT / other).is_file() for other in others)
    rules = (debian / "rules").read_text()
    assert "packaging/docs/make.py $(GENERATED)/docs" in rules
    assert "dh_compress -X.md" in rules, "a link to page.md does not find page.md.gz"
