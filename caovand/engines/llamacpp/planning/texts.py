"""Models that embed or rank texts instead of generating them: each text is read in one step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.config.schema import Config
from caovand.core.facts.inventory import ModelCard
from caovand.core.model_task import TITLES, ModelTask
from caovand.core.plan import Setting
from caovand.engines.common.options import count
from caovand.engines.llamacpp.planning.options import CONTEXT

MAX_TEXT = 8192
"""Tokens of a text, unless more are configured: its buffers grow with it."""
SWITCHES: Mapping[ModelTask, str] = {"embed": "embeddings", "score": "reranking"}
"""The options of tasks other than generating text."""


def task_of(model: ModelCard, verbatim: Mapping[str, Any]) -> ModelTask:
    """The model's task, as the operator's options set it."""
    return next((task for task, name in SWITCHES.items() if verbatim.get(name)), model.task)


def settings(task: ModelTask) -> dict[str, Setting]:
    """The option for the task, and no drafts; nothing for a model that generates text."""
    if task not in SWITCHES:
        return {}
    reason = f"the model's task is {TITLES[task]}"
    return {
        "speculative_config": Setting(None, "policy", f"{reason}, which generates no text"),
        SWITCHES[task]: Setting(True, "policy", reason),
    }


def step(config: Config, model: ModelCard, verbatim: Mapping[str, Any]) -> Setting | None:
    """The size of a step that holds the longest text; None for a model that generates text."""
    if task_of(model, verbatim) not in SWITCHES or count(verbatim.get("batch_size")):
        return None
    typed = count(verbatim.get(CONTEXT)) or config.model.max_model_len
    longest = typed or min(model.max_model_len or MAX_TEXT, MAX_TEXT)
    return Setting(
        longest, "policy", "one step reads a whole text; [model] max_model_len sets its limit"
    )
