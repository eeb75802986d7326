"""Names that mean a served model, and the bodies that the engine gets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.gateway.body import fields
from caovand.core.gateway.naming import CHAT, MESSAGES, Defaults, Naming, ResolvedName, rewrite_body
from tests.core.gateway.test_protocol import names, values

NAMING = Naming(("tiny", "qwen3:8b"), {"gpt-4o": "tiny", "deep": "tiny:high", "gone": "other"})
NOTHING = Defaults()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tiny", ResolvedName("tiny")),
        ("", ResolvedName("tiny")),
        ("tiny:high", ResolvedName("tiny", "high")),
        ("tiny:huge", None),
        ("qwen3:8b", ResolvedName("qwen3:8b")),
        ("qwen3:8b:low", ResolvedName("qwen3:8b", "low")),
        ("gpt-4o", ResolvedName("tiny")),
        ("gpt-4o:low", ResolvedName("tiny", "low")),
        ("deep", ResolvedName("tiny", "", Defaults(effort="high"))),
        ("deep:low", ResolvedName("tiny", "low", Defaults(effort="high"))),
        ("gone", None),
        ("other", None),
        (":high", None),
    ],
)
def test_a_name_means_one_model_or_none(name: str, meant: ResolvedName | None) -> None:
    assert NAMING.resolve(name) == meant
    assert NAMING.names == ("tiny", "qwen3:8b", "gpt-4o", "deep")


def sent(body: Any, path: str = CHAT, naming: Naming = NAMING, of_key: Defaults = NOTHING) -> Any:
    raw = json.dumps(body).encode()
    return json.loads(rewrite_body(raw, [*fields(raw)][-1], f"/v1/{path}", naming, of_key))


@given(st.dictionaries(names, values))
def test_only_the_model_s_name_and_what_is_not_set_change(body: dict[str, Any]) -> None:
    naming = Naming(NAMING.served, NAMING.aliases, Defaults(0.5, 100))
    for model in ("gpt-4o", "tiny"):
        asked = {**body, "model": model}
        expected = {"temperature": 0.5, "max_tokens": 100, **asked, "model": "tiny"}
        assert sent(asked, CHAT, naming) == expected
    assert sent({**body, "model": "tiny"}, "embeddings", naming) == {**body, "model": "tiny"}


def test_each_protocol_has_its_own_fields() -> None:
    naming = Naming(("tiny",), {}, Defaults(max_tokens=9, effort="low"))
    assert sent({"model": "tiny:high", "max_completion_tokens": 5}, CHAT, naming) == {
        "model": "tiny", "max_completion_tokens": 5, "reasoning_effort": "high",
    }  # fmt: skip
    assert sent({"model": "tiny"}, MESSAGES, naming) == {
        "model": "tiny", "max_tokens": 9, "output_config": {"effort": "low"},
    }  # fmt: skip
    assert sent({}, CHAT, naming) == {"max_tokens": 9, "reasoning_effort": "low"}
    assert sent(["model"], CHAT, naming) == ["model"]


def test_a_request_s_values_win_over_its_key_s_then_its_alias_s_then_everybody_s() -> None:
    of_alias = {"deep": Defaults(temperature=0.2, max_tokens=200)}
    naming = Naming(NAMING.served, NAMING.aliases, Defaults(0.1, 100, "none"), of_alias)
    of_key = Defaults(temperature=0.3)
    everybody_s = {"temperature": 0.1, "max_tokens": 100, "reasoning_effort": "none"}
    assert sent({"model": "gpt-4o"}, CHAT, naming) == {"model": "tiny", **everybody_s}
    of_both = {"temperature": 0.2, "max_tokens": 200, "reasoning_effort": "high"}
    assert sent({"model": "deep"}, CHAT, naming) == {"model": "tiny", **of_both}
    assert sent({"model": "deep"}, CHAT, naming, of_key) == {
        "model": "tiny", **of_both, "temperature": 0.3,
    }  # fmt: skip
    asked = {"model": "deep:low", "temperature": 0.4}
    of_key = Defaults(0.3, 300, "medium")
    assert sent(asked, CHAT, naming, of_key) == {
        "model": "tiny", "temperature": 0.4, "max_tokens": 300, "reasoning_effort": "low",
    }  # fmt: skip
    assert sent({}, CHAT, naming, Defaults(effort="medium"))["reasoning_effort"] == "medium"


def test_an_effort_among_an_alias_s_defaults_wins_over_that_of_its_name() -> None:
    naming = Naming(NAMING.served, NAMING.aliases, Defaults(), {"deep": Defaults(effort="max")})
    assert sent({"model": "deep"}, CHAT, naming)["reasoning_effort"] == "max"
