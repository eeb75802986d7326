"""Rules for settings that clients see: the model's task, address, names, templates, and parsers by
family.

A family's parser is only used if the engine has it and the model's own chat template mentions tools
or thinking: a checkpoint without them answers plain text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from caovand.core.checkpoint.model_task import is_written_reranker
from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.model_task import POOLING, TITLES, ModelTask
from caovand.core.plan import Setting, Unplannable
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import RANKS_BY_YES
from caovand.engines.vllm.planning.partial_plan import PartialPlan, nearest, policy, user


@dataclass(frozen=True)
class ParserFamily:
    """`marks` are prefixes of model_type; None if the family has no such parser."""

    marks: tuple[str, ...]
    tools: str | None
    reasoning: str | None


FAMILIES = (
    ParserFamily(("qwen3_5", "qwen3_6", "qwen3_8", "qwen3_next"), "qwen3_coder", "qwen3"),
    ParserFamily(("qwen3",), "hermes", "qwen3"),
    ParserFamily(("qwen2",), "hermes", None),
    ParserFamily(("gpt_oss",), "openai", "openai_gptoss"),
    ParserFamily(("gemma4",), "gemma4", "gemma4"),
    ParserFamily(("deepseek_v32",), "deepseek_v32", "deepseek_v3"),
    ParserFamily(("deepseek_v3", "deepseek_v2"), "deepseek_v3", "deepseek_r1"),
    ParserFamily(("glm4_moe", "glm4"), "glm45", "glm45"),
    ParserFamily(("kimi_k2",), "kimi_k2", "kimi_k2"),
    ParserFamily(("minimax_m2",), "minimax_m2", "minimax_m2"),
    ParserFamily(("mistral", "ministral"), "mistral", "mistral"),
    ParserFamily(("llama4",), "llama4_pythonic", None),
    ParserFamily(("llama",), "llama3_json", None),
    ParserFamily(("granitemoehybrid", "granite"), "granite", "granite"),
    ParserFamily(("seed_oss",), "seed_oss", "seed_oss"),
    ParserFamily(("olmo3",), "olmo3", "olmo3"),
    ParserFamily(("nemotron_h",), "qwen3_coder", "nemotron_v3"),
)
QWEN_CALLS = ("hermes", "qwen3_coder")
"""Qwen's two formats of tool calls; `<function=` in the template shows the second."""
THINKING = ("<think>", "</think>", "reasoning", "thinking", "[THINK]", "<|channel|>")
R1 = ("｜Assistant｜", "</think>")
"""Marks in the template of a model distilled from DeepSeek-R1, whatever its type."""
KEEP_ALIVE_S = 15
"""nginx and AWS' load balancers wait for 60 s, Cloudflare for 100; some proxies only for 30."""
_SET = "set one of vLLM's in [server]"


def _without_mention(template: str) -> str:
    return "the chat template does not mention" if template else "no chat template mentions"


def family_of(model_type: str) -> ParserFamily | None:
    """The first family with a mark that is a prefix of the type."""
    return next((f for f in FAMILIES if model_type.startswith(f.marks)), None)


def _typed_parser(key: str, name: str, known: frozenset[str]) -> Setting:
    if name == "none":
        return user(None, f"[server] {key} is none")
    if known and name not in known:
        raise Unplannable(
            f'cannot use {key} "{name}": this vLLM has no such parser; use {nearest(name, known)}'
        )
    return user(name, f"[server] {key}")


def tool_call_parser(partial: PartialPlan) -> Setting | None:
    typed = partial.config.server.tool_call_parser
    if typed is not None:
        return _typed_parser("tool_call_parser", typed, partial.engine.tool_parsers)
    if not partial.generates:
        return None
    family = family_of(partial.model.model_type)
    template = partial.model.chat_template or ""
    if not partial.model.architecture:
        return None  # nothing is known about a model that has not been downloaded yet
    if "tools" not in template:
        return policy(None, f"{_without_mention(template)} tools")
    if family is None or family.tools is None:
        kind = partial.model.model_type
        return policy(None, f"the tool-call format of models of type {kind} is unknown; {_SET}")
    name = family.tools
    if name in QWEN_CALLS:  # releases of one family write calls as XML or as JSON
        name = QWEN_CALLS["<function=" in template]
    if partial.engine.tool_parsers and name not in partial.engine.tool_parsers:
        return policy(None, f"vLLM {partial.engine.version} has no tool-call parser {name}")
    return policy(name, f"the tool-call format of models of type {partial.model.model_type}")


def enable_auto_tool_choice(partial: PartialPlan) -> Setting | None:
    if not partial.value("tool_call_parser"):
        return None
    return policy(True, "clients may offer tools and the model chooses")


def reasoning_parser(partial: PartialPlan) -> Setting | None:
    typed = partial.config.server.reasoning_parser
    if typed is not None:
        return _typed_parser("reasoning_parser", typed, partial.engine.reasoning_parsers)
    if not partial.generates:
        return None
    family = family_of(partial.model.model_type)
    template = partial.model.chat_template or ""
    if not partial.model.architecture:
        return None
    if not any(mark in template for mark in THINKING):
        return policy(None, f"{_without_mention(template)} thinking")
    name = family.reasoning if family else None
    kind = f"models of type {partial.model.model_type}"
    if name is None and all(mark in template for mark in R1):
        name, kind = "deepseek_r1", "DeepSeek-R1 and models distilled from it"
    if name is None:
        return policy(None, f"how {kind} mark their thoughts is not known; {_SET}")
    if partial.engine.reasoning_parsers and name not in partial.engine.reasoning_parsers:
        return policy(None, f"vLLM {partial.engine.version} has no reasoning parser {name}")
    return policy(name, f"how {kind} mark their thoughts")


def host(partial: PartialPlan) -> Setting | None:
    return as_configured(partial, "server", "host")


def port(partial: PartialPlan) -> Setting | None:
    return as_configured(partial, "server", "port")


def served_model_name(partial: PartialPlan) -> Setting | None:
    typed = partial.config.model.served_name
    if typed:
        return user(typed, "[model] served_name")
    name = partial.model.path.rstrip("/").rpartition("/")[2]
    return policy(name, "the last part of the model's path")


def revision(partial: PartialPlan) -> Setting | None:
    typed = partial.config.model.revision
    return user(typed, "[model] revision") if typed else None


def chat_template(partial: PartialPlan) -> Setting | None:
    typed = partial.config.model.chat_template
    return user(typed, "[model] chat_template") if typed else None


def trust_remote_code(partial: PartialPlan) -> Setting | None:
    if not partial.config.model.trust_remote_code:
        return None
    return user(True, "[model] trust_remote_code")


def enable_server_load_tracking(partial: PartialPlan) -> Setting | None:
    return policy(True, "/load shows whether work is pending, even when the engine is stuck")


def sse_keep_alive_interval(partial: PartialPlan) -> Setting | None:
    if not partial.generates or partial.engine.release < releases.KEEP_ALIVE_LINES:
        return None
    return policy(
        KEEP_ALIVE_S,
        "a comment line after this many seconds of silence: proxies cut streams that are silent "
        "for a minute, for example while a long prompt is read",
    )


def shutdown_timeout(partial: PartialPlan) -> Setting | None:
    seconds = ceil(partial.config.watch.shutdown_timeout_s)
    reason = "[watch] shutdown_timeout_s: requests may finish when asked to stop"
    return Setting(seconds, partial.config.origin("watch", "shutdown_timeout_s"), reason)


def as_configured(partial: PartialPlan, section: str, key: str) -> Setting:
    value = getattr(getattr(partial.config, section), key)
    return Setting(value, partial.config.origin(section, key), f"[{section}] {key}")


def task_of(model: ModelCard, verbatim: Mapping[str, Any]) -> ModelTask:
    """The task, as vLLM interprets the operator's flags --runner and --convert."""
    runner, convert, own = verbatim.get("runner"), verbatim.get("convert"), model.task
    if runner == "generate":
        return "generate" if own in POOLING else own
    if convert == "embed":
        return "embed"
    if convert == "classify":
        return own if own in ("classify", "score") else "classify"
    return "embed" if runner == "pooling" and own not in POOLING else own


def refuse_deaf(inventory: Inventory) -> None:
    """Raise Unplannable for a speech model if vLLM cannot decode audio files."""
    engine = inventory.engine
    if inventory.model.task == "transcription" and engine.decodes_sound is False:
        raise Unplannable(
            f"cannot serve model {inventory.model.path}: it transcribes, and the environment of"
            f" vLLM {engine.version} has no package that decodes audio files; install one with"
            f" `{engine.python} -m pip install soundfile`"
        )


def runner(partial: PartialPlan) -> Setting | None:
    if partial.task not in POOLING:
        return None
    return policy("pooling", f"the model is for {TITLES[partial.task]}, and generates no text")


def hf_overrides(partial: PartialPlan) -> Setting | None:
    model = partial.model
    name = model.path.rstrip("/").rpartition("/")[2]
    if partial.task != "score" or not is_written_reranker(model.architecture, name):
        return None
    return policy(dict(RANKS_BY_YES), 'it ranks by the probability of the answer "yes"')
