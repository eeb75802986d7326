"""Advice to people and the ladder are one: the same changes, in the same order and words."""

from __future__ import annotations

import importlib
import pkgutil
import re
import string
from collections import Counter

import pytest

from caovand.core.config.schema import ModelSection, PolicySection
from caovand.core.healing.answer import suspects
from caovand.core.healing.failure import FAILURES, Failure, Finding
from caovand.core.healing.ladder import (
    DISK,
    MACHINE_LIMIT,
    REACTIONS,
    LadderRules,
    decide,
)
from caovand.core.healing.rung import ANY
from caovand.engines.common.healing import advice_ggml, advice_host, stages
from caovand.engines.common.healing.advice_texts import GENERAL, SPECIAL
from caovand.engines.common.logs import rows
from caovand.engines.common.logs.rows import kernel_owners, raised
from caovand.engines.vllm.healing import advice_texts
from caovand.engines.vllm.healing.advice import advise
from caovand.engines.vllm.healing.cures import BLAMED, CURES, HEALING, WHATEVER_PHASE
from caovand.engines.vllm.healing.rungs import RUNGS
from caovand.engines.vllm.log.rows.ends import ALONE
from caovand.engines.vllm.log.signatures import SIGNATURES
from tests.core.test_ladder import plan_of

CHANGES = re.compile(r"(?:What helps|If it comes back), in this order: (.+)\.")


WRITTEN = {**GENERAL, **advice_texts.GENERAL}


def rungs_in(found: list[str]) -> list[str]:
    """The names of the rungs that the advice tells to take, in its order."""
    by_words = {rung.does: rung.name for rung in RUNGS}
    listed = [match[1] for text in found if (match := CHANGES.fullmatch(text))]
    assert len(listed) <= 1
    return [by_words[change.partition(" (")[0]] for one in listed for change in one.split("; ")]


def written(failure: Failure) -> str:
    """Every sentence that is written for a failure, whatever is known."""
    ids = [row.id for row in SIGNATURES if row.failure == failure]
    special = [name for name in ids if name not in HEALING.precise]
    sentences = [
        *WRITTEN[failure],
        *(t for i in special for t in advice_texts.SPECIAL.get(i, ())),
    ]
    return " ".join(sentences)


def test_no_two_tables_write_on_the_same_row() -> None:
    """In a mapping made of several, the last of two sentences on a row would hide the first."""
    names = [f"{rows.__name__}.{found.name}" for found in pkgutil.iter_modules(rows.__path__)]
    modules = [importlib.import_module(name) for name in names]
    tables = [getattr(module, "ADVICE", {}) for module in modules]
    tables += [advice_host.SPECIAL, advice_ggml.SPECIAL, stages.ADVICE]
    assert max(Counter(row for table in tables for row in table).values()) == 1


def test_no_two_rungs_have_the_same_words() -> None:
    assert len({rung.does for rung in RUNGS}) == len(RUNGS)
    assert not any(set(";()") & set(rung.does) for rung in RUNGS)


@pytest.mark.parametrize("component", ["", "weights", *BLAMED])
@pytest.mark.parametrize(("failure", "phase"), CURES)
def test_the_advice_is_the_ladders(failure: Failure, phase: str, component: str) -> None:
    captures = {"component": component} if component else {}
    for signature in ("", "a.row", *WHATEVER_PHASE):
        for here in {phase or "serving", "serving", "load"}:
            finding = Finding(failure, "text", here, captures, signature)
            blamed = suspects(finding, HEALING)
            assert rungs_in(advise(finding, {})) == [rung.name for rung in blamed]


@pytest.mark.parametrize("signature", HEALING.precise)
def test_a_precise_row_is_advised_and_taken_as_it_stands(signature: str) -> None:
    row = next(
        row for row in (*SIGNATURES, *kernel_owners.ROWS, *raised.ROWS) if row.id == signature
    )
    finding = Finding(row.failure, "text", "load", {"most": "7"}, signature)
    assert rungs_in(advise(finding, {})) == list(HEALING.precise[signature])
    kind = decide(plan_of(), finding, 1, LadderRules(HEALING)).verdict
    assert kind in ("degrade", "fail")


@pytest.mark.parametrize(("failure", "phase"), CURES)
def test_what_the_ladder_takes_is_what_was_advised(failure: Failure, phase: str) -> None:
    finding = Finding(failure, "text", phase or "serving", {}, "a.row")
    if finding.failure == "unknown":
        return  # what the ladder tries then, nobody advises
    advised = rungs_in(advise(finding, {}))
    plan, taken = plan_of(jobs=8), []
    while lower := decide(plan, finding, 99, LadderRules(HEALING)).plan:
        plan = lower
        taken.append(plan.taken[-1].rung)
    first_uses = list(dict.fromkeys(taken))
    assert first_uses == [name for name in advised if name in first_uses]


def test_where_the_ladder_only_waits_no_setting_is_advised() -> None:
    for failure in FAILURES:
        for signature in DISK:
            assert rungs_in(advise(Finding(failure, "", "load", {}, signature), {})) == []
        limited = Finding(failure, "", "load", {MACHINE_LIMIT: "yes"}, "a.row")
        assert rungs_in(advise(limited, {})) == []
        if REACTIONS[failure].kind in ("fatal", "hold", "retry"):
            assert rungs_in(advise(Finding(failure, ""), {})) == []


@pytest.mark.parametrize("failure", FAILURES)
def test_no_sentence_tells_to_change_what_the_ladder_would_not(failure: Failure) -> None:
    """A setting that is named belongs to a rung of that failure, whatever the phase."""
    useful = {name for (of, _), names in CURES.items() if of == failure for name in names}
    if not useful:
        return  # then only a person can help, and settings may be what is wrong
    named = set(re.findall(r"[A-Za-z_]{3,}", written(failure)))
    keys = set(ModelSection.__dataclass_fields__) | set(PolicySection.__dataclass_fields__)
    for rung in RUNGS:
        if rung.name not in useful:
            others = {n for r in RUNGS if r.name in useful for n in (r.key, *r.touches)}
            words = ({rung.key} & keys) | {name for name in rung.touches if "_" in name}
            assert not (words - others) & named, rung.name


def test_every_row_is_written_with_names_that_can_be_filled() -> None:
    rows = {**WRITTEN, **SPECIAL, **advice_texts.SPECIAL}
    for sentences in rows.values():
        for sentence in sentences:
            fields = [name for _, name, _, _ in string.Formatter().parse(sentence) if name]
            assert all(name.isidentifier() for name in fields)
    assert set(WRITTEN) == set(FAILURES) == {of for of, phase in CURES if phase == ANY}
    by_stage = {stages.MEASURED, stages.UNSTAGED}
    assert set(advice_texts.SPECIAL) <= {row.id for row in SIGNATURES} | by_stage | {ALONE.id}


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("RuntimeError: no room. Please install the same version of both packages.",
         "The line's own advice: Please install the same version of both packages."),
        ("ValueError: x is wrong. Try setting VLLM_X=0, or not",
         "The line's own advice: Try setting VLLM_X=0, or not."),
        ("ValueError: x is wrong. For FP4, use ModelOptFp4Config. Check the rest.",
         "The line's own advice: For FP4, use ModelOptFp4Config."),
        ("AssertionError: Only {'triton', 'fa4'} backends are known",
         "The line lists what is accepted: {'triton', 'fa4'}."),
    ],
)  # fmt: skip
def test_what_the_line_itself_advises_is_passed_on(text: str, advice: str) -> None:
    assert advice in advise(Finding("unknown", text, "resolve"), {})


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: set in config.json failed",
        "RuntimeError: check it. Please report an issue.",
        "Error: No available node types can fulfill it. Add suitabl",
    ],
)
def test_a_line_without_advice_of_its_own_gets_none(text: str) -> None:
    assert not any("own advice" in one for one in advise(Finding("unknown", text, "resolve"), {}))
