"""The plan for every box and model of the table; `--rewrite` shows a change as a diff."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.boxes import others
from tests.boxes.machines import BOXES, box_with
from tests.boxes.models import CONFIGS, WITH_FILES, model
from tests.boxes.table import EXPERT, played, rows
from tests.core.machines import plan

PLANS = Path(__file__).parent / "plans"
ENGINES = Path(__file__).parent / "engines"
OTHERS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(ENGINES.glob("*.txt"))}
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(PLANS.glob("*.txt"))}


@pytest.mark.parametrize("box", BOXES)
def test_the_plans_of_a_box_are_those_of_its_file(
    box: str, rewrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CAOVAN_AUTO_SPEC", raising=False)
    found = played(TEXTS[box], box)
    if rewrite:
        (PLANS / f"{box}.txt").write_text(found, encoding="utf-8")
    else:
        assert found == TEXTS[box]


@pytest.mark.parametrize("box", OTHERS)
def test_the_plans_of_other_engines_are_those_of_the_boxs_file(box: str, rewrite: bool) -> None:
    found = played(OTHERS[box], box, others.planned)
    if rewrite:
        (ENGINES / f"{box}.txt").write_text(found, encoding="utf-8")
    else:
        assert found == OTHERS[box]


def test_every_box_has_a_file_and_every_row_an_expert() -> None:
    assert set(TEXTS) == set(BOXES)
    for box, text in [*TEXTS.items(), *OTHERS.items()]:
        parts = text.split("\n## ")
        assert len(parts) > 2 or box in OTHERS, box
        assert [part for part in parts[1:] if f"\n{EXPERT}" not in part] == [], box


def test_every_model_is_in_some_row() -> None:
    planned = {name for text in TEXTS.values() for name in rows(text)}
    assert {*CONFIGS, *WITH_FILES} <= planned
    assert any(name.endswith(".gguf") for name in planned)


def test_what_people_wrote_outlives_a_rewrite() -> None:
    text = "# A box.\n\n## Llama-3.1-8B\nexpert: one line,\n        and one more\nplan:   stale\n"
    found = played(text, "h200")
    assert found.startswith(text.partition("plan:")[0])
    assert "stale" not in found
    assert played(found, "h200") == found


def test_one_draft_is_one_token() -> None:
    found = plan(box_with("5090", model("Qwen3.5-35B-A3B-AWQ")))
    assert found.mtp == 1
    assert "drafting 1 token: with about 3 billion" in found.settings["speculative_config"].reason
