"""Rules for what clients see (task, address, names, templates, parsers).

A parser of tool calls or thoughts is chosen if this release has it and it reads the model's format:
another would leave the calls in the text, or fail every chat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from caovand.core.checkpoint.model_task import is_written_reranker
from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.model_task import POOLING, TITLES, ModelTask
from caovand.core.plan import Setting, Unplannable
from caovand.engines.common.chat_formats import REASONING, TOOL_CALLS, ChatFormat, ChatPart, choose
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import RANKS_BY_YES
from caovand.engines.vllm.planning.partial_plan import (
    PartialPlan,
    SettingRule,
    nearest,
    policy,
    user,
)

HEALTH, LOAD, METRICS = "/health", "/load", "/metrics"
"""The paths that caovan polls while the engine serves."""
KEEP_ALIVE_S = 15
"""nginx and AWS' load balancers wait for 60 s, Cloudflare for 100; some proxies only for 30."""


def key_rule(section: str, key: str) -> SettingRule:
    """The rule of a flag that has the value of a key of caovan.toml; none if that is empty."""

    def rule(partial: PartialPlan) -> Setting | None:
        value = getattr(getattr(partial.config, section), key)
        origin = partial.config.origin(section, key)
        return Setting(value, origin, f"[{section}] {key}") if value else None

    return rule


def served_model_name(partial: PartialPlan) -> Setting | None:
    name = partial.model.path.rstrip("/").rpartition("/")[2]
    configured = key_rule("model", "served_name")(partial)
    return configured or policy(name, "the last part of the model's path")


def enable_server_load_tracking(partial: PartialPlan) -> Setting | None:
    return policy(True, "/load shows whether work is pending, even when the engine is stuck")


def disable_access_log_for_endpoints(partial: PartialPlan) -> Setting | None:
    """Clients list models, too, so /v1/models stays in the log."""
    if {"disable_uvicorn_access_log", "log_config_file"} & partial.verbatim.keys():
        return None
    return policy(
        ",".join((HEALTH, LOAD, METRICS)),
        "caovan polls these paths every few seconds: keeps the access log to clients' requests",
    )


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
    reason = "[watch] shutdown_timeout_s: the time that requests get to finish at a stop"
    return Setting(seconds, partial.config.origin("watch", "shutdown_timeout_s"), reason)


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


def refuse_without_audio_decoder(inventory: Inventory) -> None:
    """Raise Unplannable for a speech model if vLLM cannot decode audio files."""
    engine = inventory.engine
    if inventory.model.task == "transcription" and engine.decodes_sound is False:
        raise Unplannable(
            f"cannot serve model {inventory.model.path}: it transcribes audio, but vLLM "
            f"{engine.version}'s environment has no package that decodes audio files; install "
            f"one with `{engine.python} -m pip install soundfile`"
        )


def runner(partial: PartialPlan) -> Setting | None:
    if partial.task not in POOLING:
        return None
    return policy("pooling", f"the model is for {TITLES[partial.task]} and generates no text")


def hf_overrides(partial: PartialPlan) -> Setting | None:
    model = partial.model
    name = model.path.rstrip("/").rpartition("/")[2]
    if partial.task != "score" or not is_written_reranker(model.architecture, name):
        return None
    return policy(dict(RANKS_BY_YES), 'it ranks by the probability of the answer "yes"')


def prompt_warnings(partial: PartialPlan) -> Iterator[str]:
    """A warning if vLLM would score texts without the prompt that the model was trained on."""
    name = partial.model.path.rstrip("/").rpartition("/")[2]
    if partial.task != "score" or not is_written_reranker(partial.model.architecture, name):
        return
    if not partial.values.get("chat_template"):
        yield (
            f"{name} was trained with a special prompt, but without a template vLLM scores query "
            "and document without it: set [model] chat_template to vLLM's "
            "examples/pooling/score/template/qwen3_reranker.jinja"
        )


def priority_warnings(partial: PartialPlan) -> Iterator[str]:
    """A warning that clients choose who is served first."""
    if partial.verbatim.get("scheduling_policy") != "priority":
        return
    queue = (
        "caovan's gateway passes that on, and already orders those that wait by their keys"
        if partial.config.gateway.listen
        else "caovan's gateway ([gateway] listen) orders requests by keys instead"
    )
    yield (
        '--scheduling-policy priority: any client may put its requests first ("priority" in the'
        f" body), and others' out of the cache; {queue} (caovanctl key add --band background)"
    )


TOOL_PARSERS: Mapping[str, tuple[str, ...]] = {
    "Apertus": ("apertus",), "Command A": ("cohere_command3",),
    "Command A Plus": ("cohere_command4",), "DeepSeek-V3": ("deepseek_v3",),
    "DeepSeek-V3.1": ("deepseek_v31",), "DeepSeek-V3.2": ("deepseek_v32",),
    "DeepSeek-V4": ("deepseek_v4",), "Dots": ("dots",), "ERNIE 4.5": ("ernie45",),
    "FunctionGemma": ("functiongemma",), "Gemma 4": ("gemma4",), "GigaChat 3": ("gigachat3",),
    "GLM-4.5": ("glm45",), "GLM-4.7": ("glm47",), "gpt-oss": ("openai",),
    "Granite 3": ("granite",), "Granite 4": ("granite4", "hermes"),
    "Granite 20B": ("granite-20b-fc",), "Hermes 2 Pro": ("hermes",),
    "Hunyuan 3": ("hy_v3",), "Hunyuan 4": ("hy_v4",), "Hunyuan A13B": ("hunyuan_a13b",),
    "Inkling": ("inkling",), "InternLM": ("internlm",), "Jamba": ("jamba",),
    "K2 Horizon": ("k2_horizon",), "Kimi-K2": ("kimi_k2",), "Laguna": ("poolside_v1",),
    "LFM2": ("lfm2",), "Ling 3": ("ling3",), "Llama 3": ("llama3_json",),
    "Llama 3 in Python": ("pythonic",), "Llama 4": ("llama4_pythonic",),
    "Llama 4 in JSON": ("llama4_json",), "LongCat": ("longcat",), "MiMo-V2": ("mimo",),
    "MiniCPM5": ("minicpm5",), "MiniMax-M1": ("minimax",), "MiniMax-M2": ("minimax_m2",),
    "MiniMax-M3": ("minimax_m3",), "Mistral": ("mistral",), "Muse": ("muse",),
    "Muse Glimmer": ("muse_glimmer",), "OLMo 3": ("olmo3",), "Phi-4-mini": ("phi4_mini_json",),
    "PLaMo 3": ("plamo3",), "Qwen2.5": ("hermes",), "Qwen3-Coder": ("qwen3_coder",),
    "Seed-OSS": ("seed_oss",), "Step3": ("step3",), "Step-3.5": ("step3p5",),
    "Step-5": ("step5",), "xLAM": ("xlam",),
}  # fmt: skip
"""By format, the parsers that read it, the best first; releases lack some of them."""
REASONING_PARSERS: Mapping[str, tuple[str, ...]] = {
    "Command A": ("cohere_command3",), "Command A Plus": ("cohere_command4",),
    "DeepSeek-R1": ("deepseek_r1",), "DeepSeek-V3.1": ("deepseek_v3",),
    "DeepSeek-V4": ("deepseek_v4",), "ERNIE 4.5": ("ernie45",), "Gemma 4": ("gemma4",),
    "GLM-4.5": ("glm45",), "gpt-oss": ("openai_gptoss",), "Granite 3.2": ("granite",),
    "Granite 4.2": ("granite_thinking_parser",), "Hunyuan 3": ("hy_v3",),
    "Hunyuan 4": ("hy_v4",), "Hunyuan A13B": ("hunyuan_a13b",), "Kimi-K2": ("kimi_k2",),
    "Laguna": ("poolside_v1",), "Magistral": ("mistral",), "Magistral 2506": ("mistral",),
    "MiMo-V2": ("mimo",), "MiniMax-M2": ("minimax_m2",), "MiniMax-M3": ("minimax_m3",),
    "Nemotron 3": ("nemotron_v3",), "Nemotron Nano 2": ("nemotron_v3",), "OLMo 3": ("olmo3",),
    "PLaMo 3": ("plamo3",), "Qwen3": ("qwen3",), "Seed-OSS": ("seed_oss",),
    "Step3": ("step3",), "Step-3.5": ("step3p5",), "Step-5": ("step5",),
}  # fmt: skip
"""Likewise for thoughts."""
PARSER_PLUGINS = {
    "Nemotron Nano 2": "adapt the imports of NVIDIA's nemotron_toolcall_parser_no_streaming.py to"
    " this release (vllm#42065) and add --enable-auto-tool-choice --tool-parser-plugin FILE"
    " --tool-call-parser nemotron_json to [engine] extra_args",
}
"""The remedy where a model's publisher has a parser that no release ships."""
MISTRAL = "mistral"


def tool_call_parser(partial: PartialPlan) -> Setting | None:
    typed, known = partial.config.server.tool_call_parser, partial.engine.tool_parsers
    return _parser(partial, TOOL_CALLS, TOOL_PARSERS, typed, known)


def enable_auto_tool_choice(partial: PartialPlan) -> Setting | None:
    if not partial.value("tool_call_parser"):
        return None
    return policy(True, "clients can offer tools, and the model chooses")


def reasoning_parser(partial: PartialPlan) -> Setting | None:
    typed, known = partial.config.server.reasoning_parser, partial.engine.reasoning_parsers
    return _parser(partial, REASONING, REASONING_PARSERS, typed, known)


def _parser(
    partial: PartialPlan,
    part: ChatPart,
    parsers: Mapping[str, tuple[str, ...]],
    typed: str | None,
    known: frozenset[str],
) -> Setting | None:
    """The setting of one parser; None for a model that chats with nobody or is unknown."""
    if typed is not None:
        return _typed_parser(part.setting, typed, known)
    model = partial.model
    if not partial.generates or not model.architecture:
        return None  # nothing is known about a model that has not been downloaded yet
    if part is TOOL_CALLS and own_tokenizer(partial):
        return policy(MISTRAL, "Mistral's own tokenizer writes the tools and reads the calls")
    chat_format = part.format_of(model) if part.mentioned(model.chat_template or "") else None
    if chat_format and (lack := _lack(partial, part, chat_format)):
        return policy(None, lack)
    chosen = choose(part, model, parsers, known, f"vLLM {partial.engine.version}")
    remedy = PARSER_PLUGINS.get(chat_format.name) if chat_format else None
    if remedy and part is TOOL_CALLS and not chosen.value:
        return policy(None, f"{chosen.reason}, or {remedy}")
    return chosen


def _typed_parser(key: str, name: str, known: frozenset[str]) -> Setting:
    if name == "none":
        return user(None, f"[server] {key} is none")
    if known and name not in known:
        raise Unplannable(
            f'cannot use {key} "{name}": vLLM has no such parser; use {nearest(name, known)}'
        )
    return user(name, f"[server] {key}")


def own_tokenizer(partial: PartialPlan) -> bool:
    """Whether vLLM loads Mistral's own tokenizer instead of a chat template."""
    mode = partial.verbatim.get("tokenizer_mode", "auto")
    return mode == MISTRAL or (mode == "auto" and partial.model.mistral_files)


def _lack(partial: PartialPlan, part: ChatPart, chat_format: ChatFormat) -> str:
    """Why the parser of a format of thoughts would fail this model's chats, with the remedy; empty
    if it does not."""
    if part is not REASONING:
        return ""
    by_text = partial.engine.release >= releases.THOUGHTS_BY_TEXT
    own = own_tokenizer(partial)
    if (chat_format.name == "Magistral" and not (own or by_text)) or (
        chat_format.name == "Magistral 2506" and not (own and by_text)
    ):
        newer = "" if by_text else f" and vLLM {releases.name(releases.THOUGHTS_BY_TEXT)} or newer"
        return (
            "vLLM's parser of Mistral's thoughts needs Mistral's own tokenizer"
            f"{newer * (chat_format.name == 'Magistral 2506')}: add tekken.json to the folder and"
            " --tokenizer-mode mistral to [engine] extra_args; otherwise set [server]"
            ' reasoning_parser = "none"'
        )
    if chat_format.name == "Nemotron Nano 2" and not by_text:
        return (
            f"its tokenizer has no token for <think>, which vLLM {partial.engine.version} requires;"
            f" use vLLM {releases.name(releases.THOUGHTS_BY_TEXT)} or newer"
        )
    return ""
