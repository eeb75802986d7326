"""SGLang's parsers of tool calls and thoughts, by the formats that a model has."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.config.schema import Config
from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Setting
from caovand.engines.common.chat_formats import REASONING, TOOL_CALLS, choose

TOOL_PARSERS: Mapping[str, tuple[str, ...]] = {
    "Apertus": ("apertus2509",), "Command A Plus": ("cohere_command4",),
    "Command A": ("cohere_command4",), "DeepSeek-V3": ("deepseekv3",),
    "DeepSeek-V3.1": ("deepseekv31",), "DeepSeek-V3.2": ("deepseekv32",),
    "DeepSeek-V4": ("deepseekv4",), "Gemma 4": ("gemma4",), "GigaChat 3": ("gigachat3",),
    "GLM-4.5": ("glm45",), "GLM-4.7": ("glm47",), "gpt-oss": ("gpt-oss",),
    "Granite 4": ("hermes",), "Hermes 2 Pro": ("hermes",), "Hunyuan 3": ("hunyuan",),
    "Inkling": ("inkling",), "InternLM": ("interns1",), "Kimi-K2": ("kimi_k2",),
    "Laguna": ("poolside_v1",), "LFM2": ("lfm2",), "Llama 3": ("llama3",),
    "Llama 3 in Python": ("pythonic",), "Llama 4": ("pythonic",), "Llama 4 in JSON": ("llama3",),
    "MiMo-V2": ("mimo",), "MiniCPM5": ("minicpm5",), "MiniMax-M2": ("minimax-m2",),
    "MiniMax-M3": ("minimax-m3",), "Mistral": ("mistral",), "Qwen2.5": ("qwen", "qwen25"),
    "Qwen3-Coder": ("qwen3_coder",), "Step3": ("step3",), "Step-3.5": ("step3p5",),
}  # fmt: skip
"""By format, the parsers that read it, the best first."""
REASONING_PARSERS: Mapping[str, tuple[str, ...]] = {
    "Apertus": ("apertus2509",), "Command A": ("cohere_command4",),
    "Command A Plus": ("cohere_command4",), "DeepSeek-R1": ("deepseek-r1",),
    "DeepSeek-V3.1": ("deepseek-v3",), "DeepSeek-V4": ("deepseek-v4",), "Gemma 4": ("gemma4",),
    "GLM-4.5": ("glm45",), "gpt-oss": ("gpt-oss",), "Hunyuan 3": ("hunyuan",),
    "Kimi-K2": ("kimi_k2",), "Kimi-VL": ("kimi",), "Laguna": ("poolside_v1",),
    "Magistral": ("mistral",), "MiMo-V2": ("mimo",), "MiniMax-M2": ("minimax",),
    "MiniMax-M3": ("minimax-m3",), "Nemotron 3": ("nemotron_3",), "Qwen3": ("qwen3",),
    "Step3": ("step3",), "Step-3.5": ("step3p5",),
}  # fmt: skip
"""Likewise for thoughts."""


def settings(config: Config, inventory: Inventory) -> dict[str, Setting]:
    """Both parsers: the configured ones, else those that read the model's formats."""
    engine, server = inventory.engine, config.server
    settings = {}
    for part, typed, parsers, known in (
        (TOOL_CALLS, server.tool_call_parser, TOOL_PARSERS, engine.tool_parsers),
        (REASONING, server.reasoning_parser, REASONING_PARSERS, engine.reasoning_parsers),
    ):
        if typed is not None:
            value = None if typed == "none" else typed
            settings[part.setting] = Setting(value, "user", f"[server] {part.setting}")
        elif inventory.model.architecture:
            engine_name = f"SGLang {engine.version}"
            settings[part.setting] = choose(part, inventory.model, parsers, known, engine_name)
    return settings
