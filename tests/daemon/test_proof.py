"""The prompt that proves an engine."""

from __future__ import annotations

import pytest

from caovand.adapters.network.http import Endpoint, Unanswered
from caovand.core.plan import Plan, Setting
from caovand.daemon.engine import proof
from caovand.engines.registry import engine_of
from tests.lab.completions_server import completions
from tests.patience import LIMIT_S


def test_a_model_that_embeds_answers_with_numbers_or_not_at_all() -> None:
    plan = Plan("m", {"served_model_name": Setting("q", "user", "")}, {}, task="embed")
    with completions() as server:
        endpoint = Endpoint("127.0.0.1", server.port)
        asked = (engine_of().api, plan, endpoint, [4, 5, 6], 2, LIMIT_S)
        server.embedding = [0.5, -0.5]
        assert proof.count_answer(*asked) == 2
        assert server.asked == [("/v1/embeddings", {"model": "q", "input": [4, 5, 6]})]
        server.embedding = [0.5, None]
        with pytest.raises(Unanswered, match="a value that is not a number"):
            proof.count_answer(*asked)
        server.status = 404
        with pytest.raises(Unanswered, match="/v1/embeddings: HTTP 404"):
            proof.count_answer(*asked)


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
