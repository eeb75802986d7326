"""SGLang parses what a model writes without being asked: it parses nothing by default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.plan import Plan
from caovand.engines.common.chat_formats import CALLS, CALLS_BY_TYPE, THOUGHTS
from caovand.engines.sglang.planning.chat_parsers import REASONING_PARSERS, TOOL_PARSERS
from tests.engines.sglang.test_planner import LLAMA_8B, machine, plan
from tests.engines.sglang.test_real_parser import LOCKED

TOOLS = dict(LOCKED.choices)["--tool-call-parser"]
THINKING = dict(LOCKED.choices)["--reasoning-parser"]
ASKED = replace(LOCKED, tool_parsers=frozenset(TOOLS), reasoning_parsers=frozenset(THINKING))
JSON = '{% if tools %}<tool_call>\n{"name": x}\n</tool_call>{% endif %}<think></think>'
NANO = "{{ tools }}<TOOLCALL>[]</TOOLCALL>"


def chat(kind: str, template: str, **sections: Any) -> Plan:
    model = replace(LLAMA_8B, model_type=kind, chat_template=template)
    return plan(machine(model=model, engine=ASKED), **sections)


@pytest.mark.parametrize(
    ("kind", "template", "tools", "reasoning"),
    [
        ("qwen3", JSON, "qwen", "qwen3"),
        ("qwen3_moe", JSON, "qwen", "qwen3"),
        ("granitemoehybrid", JSON, "hermes", None),
        ("qwen3_5_text", "{{ tools }}<tool_call><function=x><think>", "qwen3_coder", "qwen3"),
        ("gpt_oss", "{{ tools }}<|channel|>", "gpt-oss", "gpt-oss"),
        ("mistral", "{{ tools }}[TOOL_CALLS][THINK]", "mistral", "mistral"),
        ("glm4_moe_lite", "{{ tools }}<arg_key><think>", "glm47", "glm45"),
        ("llama", "plain", None, None),
        ("nemotron_h", NANO, None, None),
    ],
)
def test_parsers_follow_the_template(
    kind: str, template: str, tools: str | None, reasoning: str | None
) -> None:
    found = chat(kind, template)
    assert (found.value("tool_call_parser"), found.value("reasoning_parser")) == (tools, reasoning)


def test_configured_parsers_win() -> None:
    found = chat("qwen3", JSON, server={"tool_call_parser": "none", "reasoning_parser": "kimi"})
    assert (found.value("tool_call_parser"), found.value("reasoning_parser")) == (None, "kimi")


def test_calls_that_no_parser_reads_are_a_warning() -> None:
    (warning,) = (text for text in chat("nemotron_h", NANO).warnings if "tool calls" in text)
    assert "SGLang 0.5.17 has no parser for it" in warning


def test_every_parser_is_one_of_the_release() -> None:
    assert {name for names in TOOL_PARSERS.values() for name in names} <= set(TOOLS)
    assert {name for names in REASONING_PARSERS.values() for name in names} <= set(THINKING)
    assert TOOL_PARSERS.keys() <= {one.name for one in (*CALLS, *CALLS_BY_TYPE)}
    assert REASONING_PARSERS.keys() <= {one.name for one in THOUGHTS}
