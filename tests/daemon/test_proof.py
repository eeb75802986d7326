"""The prompt that proves an engine."""

from __future__ import annotations

import pytest

from caovand.core.plan import Plan, Setting
from caovand.daemon import proof
from caovand.engines.registry import engine_of


@pytest.mark.parametrize(
    ("context", "length"),
    [
        (None, proof.PROMPT_TOKENS),
        ("auto", proof.PROMPT_TOKENS),
        (-1, proof.PROMPT_TOKENS),
        ("1k", min(500, proof.PROMPT_TOKENS)),
        (16, 8),
        (1, 1),
    ],
)
def test_the_prompt_leaves_half_of_the_context_whichever_way_that_is_written(
    context: object, length: int
) -> None:
    plan = Plan("m", {"max_model_len": Setting(context, "user", "")}, {})
    assert len(proof._prompt(engine_of().planning.context(plan))) == length
