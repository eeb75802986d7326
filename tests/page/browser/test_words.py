"""The page's sentences: the same keys in both languages, and each is used."""

from __future__ import annotations

import json
import re
from typing import get_args

from caovand.core.engine.log import StartStep
from caovand.core.healing.failure import FAILURES
from caovand.core.model_task import ModelTask
from tests.daemon_process import ROOT

STATIC = ROOT / "caovand/page/static"
ENTRY = re.compile(r'(?:^|[ {,])"?([\w-]+)"?: "([^"]*)"', re.M)
VALUE = re.compile(r"\{(\w+)\}")
# Made of a part and a name, as of a state.
MADE = ("about-", "step-", "part-", "theme-", "n-", "mark-", "span-", "origin-", "node-",
        "task-")  # fmt: skip


def words(language: str) -> dict[str, str]:
    found = ENTRY.findall((STATIC / f"words.{language}.js").read_text(encoding="utf-8"))
    keys = [key for key, _ in found]
    assert [key for key in keys if keys.count(key) > 1] == [], "the last one alone would count"
    return dict(found)


def test_both_languages_have_the_same_sentences_with_the_same_values() -> None:
    english, chinese = words("en"), words("zh")
    assert len(english) > 100
    assert english.keys() == chinese.keys()
    for key, text in english.items():
        assert set(VALUE.findall(text)) == set(VALUE.findall(chinese[key])), key


def test_each_sentence_is_used() -> None:
    files = [*STATIC.glob("*.js"), STATIC / "index.html"]
    code = "".join(
        one.read_text(encoding="utf-8") for one in files if not re.match(r"words\.|uplot", one.name)
    )
    states = {key.removeprefix("about-") for key in words("en") if key.startswith("about-")}
    unused = [
        key
        for key in words("en")
        if not key.startswith(MADE) and key not in states and f'"{key}"' not in code
    ]
    assert unused == []


def test_each_task_but_generating_text_has_a_word() -> None:
    told = {key.removeprefix("task-") for key in words("en") if key.startswith("task-")}
    assert told == set(get_args(ModelTask)) - {"generate"}


def test_the_steps_of_a_start_are_those_of_the_status() -> None:
    """Phases are an engine's: the page knows steps alone, and has words for each."""
    found = re.search(r"^const STEPS = (\[.*\]);$", (STATIC / "state.js").read_text(), re.M)
    assert found
    assert json.loads(found[1]) == list(get_args(StartStep))
    named = [key for key in words("en") if key.startswith("step-")]
    assert named == [f"step-{step}" for step in get_args(StartStep)]


def test_no_file_asks_another_host_and_none_puts_markup_in() -> None:
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8")
        if file.suffix in {".html", ".css", ".js"} and file.name != "uplot.js":
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), file.name
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text)
        if file.suffix == ".html":
            assert not re.search(r"<script>|<style|\sstyle=|\son\w+=", text), file.name


def test_each_failure_is_explained_in_the_words_of_the_chinese_guide() -> None:
    guide = (ROOT / "packaging/docs/guide.zh-CN.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| [^|]* \|([^|]*)\|$", guide, re.M)
    written = [
        (name, cause.replace("`", ""), remedy.strip().replace("`", ""))
        for name, cause, remedy in rows
        if name in FAILURES
    ]
    shown = (STATIC / "failures.zh.js").read_text(encoding="utf-8")
    assert re.findall(r'^  "([\w-]+)": \["(.*)", "(.*)"\],$', shown, re.M) == written
    assert [name for name, _, _ in written] == list(FAILURES)
