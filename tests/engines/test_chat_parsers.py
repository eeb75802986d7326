"""Parsers follow what a model writes, in releases as they were probed.

The templates are the parts of the published ones that show a format.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.plan import Plan
from caovand.engines.common.chat_formats import CALLS, CALLS_BY_TYPE, THOUGHTS
from caovand.engines.vllm.planning.serving import REASONING_PARSERS, TOOL_PARSERS
from tests.core.machines import QWEN_27B_AWQ, inventory, plan
from tests.engines.test_real_flags import engine

OLD, NEW = engine("0.21.0"), engine("0.33.0")
JSON = '{% if tools %}<tool_call>\n{"name": <function-name>}\n</tool_call>{% endif %}'
XML = "{% if tools %}<tool_call>\n<function=x>\n<parameter=y>\n</tool_call>{% endif %}"
GLM_45 = "{% if tools %}<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>{% endif %}"
GLM_47 = GLM_45.replace("\n", "")
NANO = '{% if tools %}<TOOLCALL>[{"name": "tool_name1"}]</TOOLCALL>{% endif %}<think>'
MISTRAL = "{% if tools %}[AVAILABLE_TOOLS]{{ tools }}{% endif %}[TOOL_CALLS]"
DEEPSEEK = (
    "{% if tools %}<｜tool▁calls▁begin｜>function<｜tool▁sep｜>{% endif %}<｜Assistant｜></think>"
)


def chat(kind: str, template: str, release: str = "", **more: Any) -> Plan:
    model = replace(QWEN_27B_AWQ, model_type=kind, chat_template=template)
    files = {name: more.pop(name) for name in ("mistral_files",) if name in more}
    model = replace(model, **files)
    return plan(inventory(model, engine=OLD if release == "old" else NEW), **more)


@pytest.mark.parametrize(
    ("kind", "template", "old", "new"),
    [
        ("granitemoehybrid", JSON, "granite4", "granite4"),
        ("granite", "{% if tools %}<|tool_call|>{% endif %}", "granite", "granite"),
        ("granitemoehybrid", XML, "qwen3_coder", "qwen3_coder"),
        ("nemotron_h", XML, "qwen3_coder", "qwen3_coder"),
        ("nemotron_h", NANO, None, None),
        ("glm4_moe", GLM_45, "glm45", "glm45"),
        ("glm4_moe", GLM_47, "glm47", "glm47"),
        ("glm4_moe_lite", GLM_45, "glm47", "glm47"),
        ("llama", JSON, "hermes", "hermes"),
        ("phi3", JSON, "hermes", "hermes"),
        ("phi3", "{% if tools %}<|tool|>{% endif %}", None, None),
        ("ernie4_5_moe", JSON, "ernie45", "ernie45"),
        ("llama", '{{ tools }}Respond in {"name": function name, "parameters": x}',
         "llama3_json", "llama3_json"),
        ("llama4_text", '{{ tools }}{"name": function name, "parameters": x}',
         "llama4_json", "llama4_json"),
        ("llama4_text", "{{ tools }}[func_name1(a=b)]", "llama4_pythonic", "llama4_pythonic"),
        ("llama", "{{ tools }}<function=x>{}</function>", None, None),
        ("mistral", MISTRAL, "mistral", "mistral"),
        ("deepseek_v3", DEEPSEEK, "deepseek_v31", "deepseek_v31"),
        ("deepseek_v3", DEEPSEEK + "\n```json", "deepseek_v3", "deepseek_v3"),
        ("minimax_m1", "{{ tools }}<tool_calls>", "minimax", None),
        ("minimax_m3", "{{ tools }}]<]minimax[>[<tool_call>", None, "minimax_m3"),
        ("jamba", "{{ tools }}<tool_calls>", "jamba", "jamba"),
        ("lfm2", "{{ tools }}<|tool_call_start|>", "lfm2", "lfm2"),
        ("cohere2", "{{ tools }}<|START_ACTION|>", "cohere_command3", "cohere_command3"),
        ("seed_oss", "{{ tools }}<seed:tool_call><function=x>", "seed_oss", "seed_oss"),
    ],
)  # fmt: skip
def test_a_tool_parser_reads_the_format_of_the_template(
    kind: str, template: str, old: str | None, new: str | None
) -> None:
    for release, name in (("old", old), ("new", new)):
        found = chat(kind, template, release)
        assert found.value("tool_call_parser") == name
        assert found.value("enable_auto_tool_choice") == (True if name else None)


@pytest.mark.parametrize(
    ("kind", "template", "old", "new"),
    [
        ("deepseek_v3", "｜Assistant｜</think>", "deepseek_r1", "deepseek_r1"),
        ("deepseek_v3", "{% set thinking = false %}｜Assistant｜</think>",
         "deepseek_v3", "deepseek_v3"),
        ("qwen2", "<|im_start|>assistant\\n<think>\\n", "deepseek_r1", "deepseek_r1"),
        ("qwen2", "<think>", None, None),
        ("nemotron_h", XML + "<think>", "nemotron_v3", "nemotron_v3"),
        ("nemotron_h", NANO, None, "nemotron_v3"),
        ("granite", "Here is my thought process:", "granite", "granite"),
        ("granite", "<think></think><response></response>", None, None),
        ("granite", "{% if enable_thinking %}<think></think>", None, "granite_thinking_parser"),
        ("mistral", "[THINK]", None, "mistral"),
        ("mistral", "<think>", None, None),
        ("glm4_moe_lite", "<think>", "glm45", "glm45"),
        ("minimax", "<minimax:tool_call><think></think>", "minimax_m2", "minimax_m2"),
    ],
)  # fmt: skip
def test_a_reasoning_parser_reads_the_marks_of_the_template(
    kind: str, template: str, old: str | None, new: str | None
) -> None:
    assert chat(kind, template, "old").value("reasoning_parser") == old
    assert chat(kind, template).value("reasoning_parser") == new


def test_mistral_s_own_tokenizer_reads_its_thoughts_and_calls() -> None:
    typed = {"engine": {"extra_args": ["--tokenizer-mode", "mistral"]}}
    assert chat("mistral", "[THINK]", "old", **typed).value("reasoning_parser") == "mistral"
    own = chat("mistral", "[THINK]", "old", mistral_files=True)
    assert own.value("reasoning_parser") == own.value("tool_call_parser") == "mistral"
    assert chat("mistral", "<think>", mistral_files=True).value("reasoning_parser") == "mistral"
    assert chat("mistral", "<think>", "old", mistral_files=True).value("reasoning_parser") is None


def test_what_has_no_parser_is_a_warning_with_its_remedy() -> None:
    (calls,) = (text for text in chat("nemotron_h", NANO).warnings if "tool calls" in text)
    assert "vLLM 0.33.0 has no parser for it" in calls
    assert "--tool-call-parser nemotron_json" in calls
    (thoughts,) = (text for text in chat("mistral", "[THINK]", "old").warnings if "thou" in text)
    assert "--tokenizer-mode mistral" in thoughts
    typed = {"tool_call_parser": "none"}
    assert not any("calls" in text for text in chat("nemotron_h", NANO, server=typed).warnings)


def test_every_format_is_one_that_some_release_reads() -> None:
    tools, thoughts = OLD.tool_parsers | NEW.tool_parsers, OLD.reasoning_parsers
    for names in TOOL_PARSERS.values():
        assert set(names) <= tools
    for names in REASONING_PARSERS.values():
        assert set(names) <= thoughts | NEW.reasoning_parsers
    known = {one.name for one in (*CALLS, *CALLS_BY_TYPE)}
    assert known - TOOL_PARSERS.keys() == {"Nemotron Nano 2"}
    assert {one.name for one in THOUGHTS} - REASONING_PARSERS.keys() == {"Kimi-VL", "Apertus"}
