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
        ("deep", ResolvedName("tiny", "high")),
        ("deep:low", ResolvedName("tiny", "low")),
        ("gone", None),
        ("other", None),
        (":high", None),
    ],
)
def test_a_name_means_one_model_or_none(name: str, meant: ResolvedName | None) -> None:
    assert NAMING.meant(name) == meant
    assert NAMING.names == ("tiny", "qwen3:8b", "gpt-4o", "deep")


def sent(body: Any, path: str = CHAT, naming: Naming = NAMING) -> Any:
    raw = json.dumps(body).encode()
    return json.loads(rewrite_body(raw, [*fields(raw)][-1], f"/v1/{path}", naming))


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
