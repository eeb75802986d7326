"""The formats of a model's tool calls and thoughts, whichever engine parses them.

The chat template's own words come first: they are what the model was trained on. The model's type
decides where a template shows no format, or where one format has variants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from caovand.core.facts.inventory import ModelCard
from caovand.core.plan import Setting


@dataclass(frozen=True)
class ChatFormat:
    """A format of tool calls or thoughts, named after the models that introduced it.

    A chat template uses it if it contains all of `marks` and, if there are `types`, the model's
    type begins with one of them.
    """

    name: str
    marks: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    def suits(self, model: ModelCard) -> bool:
        template = model.chat_template or ""
        return all(mark in template for mark in self.marks) and (
            not self.types or model.model_type.startswith(self.types)
        )


CALLS = (
    ChatFormat("DeepSeek-V4", ("<｜DSML｜tool_calls>",)),
    ChatFormat("DeepSeek-V3.2", ("<｜DSML｜function_calls>",)),
    ChatFormat("DeepSeek-V3", ("<｜tool▁calls▁begin｜>", "```json")),
    ChatFormat("DeepSeek-V3.1", ("<｜tool▁calls▁begin｜>",)),
    ChatFormat("Kimi-K2", ("<|tool_calls_section_begin|>",)),
    ChatFormat("MiniMax-M3", ("]<]minimax[>[",)),
    ChatFormat("MiniMax-M2", ("<minimax:tool_call>",)),
    ChatFormat("Seed-OSS", ("<seed:tool_call>",)),
    ChatFormat("Step3", ("<steptml:invoke",)),
    ChatFormat("Step3", ("<｜tool_calls_begin｜>",)),
    ChatFormat("LongCat", ("<longcat_tool_call>",)),
    ChatFormat("Dots", ("<dots_function_call>",)),
    ChatFormat("Apertus", ("<|tools_prefix|>",)),
    ChatFormat("PLaMo 3", ("<|plamo:begin_tool_requests:plamo|>",)),
    ChatFormat("K2 Horizon", ("<ifm|tool_call>",)),
    ChatFormat("Muse Glimmer", ("<atem:function_calls>",), ("muse_glimmer",)),
    ChatFormat("Muse", ("<atem:function_calls>",)),
    ChatFormat("Inkling", ("<|content_invoke_tool_json|>",)),
    ChatFormat("GigaChat 3", ("<|function_call|>",)),
    ChatFormat("GigaChat 3", ("function call<|role_sep|>",)),
    ChatFormat("Command A Plus", ("<|START_ACTION|>", "<|START_TEXT|>")),
    ChatFormat("Command A", ("<|START_ACTION|>",)),
    ChatFormat("FunctionGemma", ("<start_function_call>",)),
    ChatFormat("Gemma 4", ("<|tool_call>",)),
    ChatFormat("LFM2", ("<|tool_call_start|>",)),
    ChatFormat("gpt-oss", ("<|channel|>",)),
    ChatFormat("Granite 3", ("<|tool_call|>",), ("granite",)),
    ChatFormat("Granite 20B", ("<function_call>",), ("gpt_bigcode",)),
    ChatFormat("OLMo 3", ("<function_calls>",), ("olmo",)),
    ChatFormat("InternLM", ("<|action_start|>",)),
    ChatFormat("Nemotron Nano 2", ("<TOOLCALL>",)),
    ChatFormat("Hunyuan 3", ("<tool_calls", "<tool_sep"), ("hy_v3",)),
    ChatFormat("Hunyuan 4", ("<tool_calls", "<arg_key"), ("hy_v4",)),
    ChatFormat("Hunyuan A13B", ("<tool_calls>",), ("hunyuan",)),
    ChatFormat("Jamba", ("<tool_calls>",), ("jamba",)),
    ChatFormat("MiniMax-M1", ("<tool_calls>",), ("minimax",)),
    ChatFormat("MiniCPM5", ("<function name=", "<param name=")),
    ChatFormat("Step-3.5", ("<tool_call>", "<function="), ("step3p5",)),
    ChatFormat("Step-5", ("<tool_call>", "<function="), ("step5",)),
    ChatFormat("MiMo-V2", ("<tool_call>", "<function="), ("mimo",)),
    ChatFormat("Qwen3-Coder", ("<tool_call>", "<function=")),
    ChatFormat("Qwen3-Coder", ("<function=",), ("qwen",)),
    ChatFormat("Laguna", ("<arg_key>",), ("laguna",)),
    ChatFormat("Ling 3", ("<arg_key>",), ("bailing",)),
    ChatFormat("GLM-4.7", ("<arg_key>",), ("glm4_moe_lite", "glm_moe_dsa")),
    ChatFormat("GLM-4.7", ("<tool_call>{function-name}<arg_key>",)),
    ChatFormat("GLM-4.5", ("<arg_key>",), ("glm",)),
    ChatFormat("xLAM", ("single JSON array",)),
    ChatFormat("Granite 4", ("<tool_call>",), ("granite",)),
    ChatFormat("ERNIE 4.5", ("<tool_call>",), ("ernie4_5",)),
    ChatFormat("Qwen2.5", ("<tool_call>",), ("qwen",)),
    ChatFormat("Hermes 2 Pro", ("<tool_call>",)),
    ChatFormat("Mistral", ("[TOOL_CALLS]",)),
    ChatFormat("Mistral", ("[AVAILABLE_TOOLS]",)),
    ChatFormat("Llama 4", ("func_name1(",), ("llama4",)),
    ChatFormat("Llama 4 in JSON", ('"parameters"',), ("llama4",)),
    ChatFormat("Llama 3 in Python", ("func_name1(",)),
    ChatFormat("Llama 3", ("<|python_tag|>",)),
    ChatFormat("Llama 3", ('{"name": function name, "parameters":',)),
    ChatFormat("Phi-4-mini", ("functools[",)),
)
"""Formats of tool calls. The first that suits a model is its own, so variants come first."""
CALLS_BY_TYPE = (
    ChatFormat("Qwen3-Coder", types=("qwen3_5", "qwen3_6", "qwen3_8", "qwen3_next")),
    ChatFormat("Qwen2.5", types=("qwen3", "qwen2")),
    ChatFormat("gpt-oss", types=("gpt_oss",)),
    ChatFormat("Gemma 4", types=("gemma4",)),
    ChatFormat("DeepSeek-V3.2", types=("deepseek_v32",)),
    ChatFormat("DeepSeek-V3", types=("deepseek_v3", "deepseek_v2")),
    ChatFormat("GLM-4.7", types=("glm4_moe_lite", "glm_moe_dsa")),
    ChatFormat("GLM-4.5", types=("glm4",)),
    ChatFormat("Kimi-K2", types=("kimi_k2",)),
    ChatFormat("MiniMax-M2", types=("minimax_m2",)),
    ChatFormat("Mistral", types=("mistral", "ministral")),
    ChatFormat("Llama 4", types=("llama4",)),
    ChatFormat("Llama 3", types=("llama",)),
    ChatFormat("Granite 4", types=("granitemoehybrid",)),
    ChatFormat("Granite 3", types=("granite",)),
    ChatFormat("Seed-OSS", types=("seed_oss",)),
    ChatFormat("OLMo 3", types=("olmo3",)),
)
"""Formats of tool calls where the template shows none."""
SHOWN = (
    "<tool_call", "<TOOLCALL", "<|tool_call", "[TOOL_CALLS", "<｜tool▁call", "<function",
    "<|action_start",
)  # fmt: skip
"""Parts of templates that show some tool-call format, known or not."""
THOUGHTS = (
    ChatFormat("gpt-oss", ("<|channel|>",)),
    ChatFormat("Gemma 4", ("<|channel>",)),
    ChatFormat("Seed-OSS", ("<seed:think>",)),
    ChatFormat("MiniMax-M3", ("<mm:think>",)),
    ChatFormat("Magistral", ("[THINK]",)),
    ChatFormat("Magistral 2506", ("<think>",), ("mistral", "ministral")),
    ChatFormat("Command A Plus", ("<|START_THINKING|>", "<|START_TEXT|>")),
    ChatFormat("Command A", ("<|START_THINKING|>",)),
    ChatFormat("Granite 3.2", ("my thought process",), ("granite",)),
    ChatFormat("Granite 4.2", ("</think>", "enable_thinking"), ("granite",)),
    ChatFormat("Kimi-VL", ("◁think▷",)),
    ChatFormat("PLaMo 3", ("<|plamo:begin_think:plamo|>",)),
    ChatFormat("Apertus", ("<|inner_prefix|>",)),
    ChatFormat("DeepSeek-V4", ("<｜DSML｜tool_calls>",)),
    ChatFormat("DeepSeek-V3.1", ("｜Assistant｜", "</think>", "set thinking")),
    ChatFormat("DeepSeek-R1", ("｜Assistant｜", "</think>")),
    ChatFormat("DeepSeek-R1", ("<|im_start|>assistant\\n<think>",), ("qwen2",)),
    ChatFormat("Kimi-K2", ("<|tool_calls_section_begin|>", "</think>")),
    ChatFormat("MiniMax-M2", ("<minimax:tool_call>", "</think>")),
    ChatFormat("Nemotron Nano 2", ("<TOOLCALL>",)),
    ChatFormat("Nemotron 3", types=("nemotron_h",)),
    ChatFormat("Hunyuan A13B", ("<answer>",), ("hunyuan",)),
    ChatFormat("Hunyuan 3", types=("hy_v3",)),
    ChatFormat("Hunyuan 4", types=("hy_v4",)),
    ChatFormat("ERNIE 4.5", types=("ernie4_5",)),
    ChatFormat("Laguna", types=("laguna",)),
    ChatFormat("Step-3.5", types=("step3p5",)),
    ChatFormat("Step-5", types=("step5",)),
    ChatFormat("Step3", types=("step3",)),
    ChatFormat("MiMo-V2", types=("mimo_v2",)),
    ChatFormat("Qwen3", types=("qwen3",)),
    ChatFormat("DeepSeek-V3.1", types=("deepseek_v32",)),
    ChatFormat("DeepSeek-R1", types=("deepseek_v3", "deepseek_v2")),
    ChatFormat("GLM-4.5", types=("glm4_moe", "glm4v_moe", "glm_moe_dsa", "glm4")),
    ChatFormat("Kimi-K2", types=("kimi_k2",)),
    ChatFormat("MiniMax-M2", types=("minimax_m2",)),
    ChatFormat("OLMo 3", types=("olmo3",)),
)
"""Formats of thoughts, likewise."""
THINKING = (
    "think>", "thought process", "reasoning", "thinking", "[THINK]", "<|channel|>", "<|channel>",
    "◁think▷",
)  # fmt: skip
"""Parts of templates of models that think."""


@dataclass(frozen=True)
class ChatPart:
    """A part of answers that engines have parsers for: `format_of` finds its format in a model."""

    setting: str
    title: str
    mentioned: Callable[[str], bool]
    format_of: Callable[[ModelCard], ChatFormat | None]


def _calls(model: ModelCard) -> ChatFormat | None:
    """The format of a model's tool calls; None if it is unknown."""
    template = model.chat_template or ""
    rows = CALLS if any(word in template for word in SHOWN) else (*CALLS, *CALLS_BY_TYPE)
    return next((row for row in rows if row.suits(model)), None)


def _thoughts(model: ModelCard) -> ChatFormat | None:
    """The format of a model's thoughts; None if it is unknown."""
    return next((row for row in THOUGHTS if row.suits(model)), None)


TOOL_CALLS = ChatPart(
    "tool_call_parser", "tool calls", lambda template: "tools" in template, _calls
)
REASONING = ChatPart(
    "reasoning_parser",
    "thoughts",
    lambda template: any(word in template for word in THINKING),
    _thoughts,
)


def choose(
    part: ChatPart,
    model: ModelCard,
    parsers: Mapping[str, Sequence[str]],
    known: Collection[str],
    engine: str,
) -> Setting:
    """The first of the `parsers` of a model's format that the engine has; `known` are all it has.

    `parsers` are by format, the best first; an empty `known` means that the engine was not probed.
    """
    template = model.chat_template or ""
    if not part.mentioned(template):
        mention = "the chat template does not mention" if template else "no chat template mentions"
        return _policy(None, f"{mention} {'tools' if part is TOOL_CALLS else 'thinking'}")
    chat_format = part.format_of(model)
    if chat_format is None:
        kind = f"the {part.title} format of models of type {model.model_type}"
        return _policy(None, f"{kind} is unknown; set one of {engine}'s in [server] {part.setting}")
    usable = (name for name in parsers.get(chat_format.name, ()) if not known or name in known)
    of_type = f"models of type {model.model_type} have"
    source = "the chat template has" if chat_format.marks else of_type
    evidence = f"{source} {chat_format.name}'s format of {part.title}"
    if name := next(usable, None):
        return _policy(name, evidence)
    remedy = f'set [server] {part.setting} = "none"'
    return _policy(None, f"{evidence}, but {engine} has no parser for it; {remedy}")


def _policy(value: str | None, reason: str) -> Setting:
    return Setting(value, "policy", reason)


def unparsed_warnings(model: ModelCard, settings: Mapping[str, Setting]) -> Iterator[str]:
    """A warning for each part of answers that has no parser though the chat template has it."""
    for part in (TOOL_CALLS, REASONING):
        setting = settings.get(part.setting)
        if setting is None or setting.value or setting.origin != "policy":
            continue
        if part.mentioned(model.chat_template or "") and (
            part is TOOL_CALLS or part.format_of(model)
        ):
            yield f"{part.title} stay in the answers' text: {setting.reason}"
