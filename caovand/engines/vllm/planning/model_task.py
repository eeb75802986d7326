"""Rules for models that do something other than generate text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.checkpoint.model_task import is_written_reranker
from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.model_task import POOLING, TITLES, ModelTask
from caovand.core.plan import Setting, Unplannable
from caovand.engines.vllm.flags.spelling import RANKS_BY_YES
from caovand.engines.vllm.planning.partial_plan import PartialPlan, policy


def task_of(model: ModelCard, verbatim: Mapping[str, Any]) -> ModelTask:
    """The task, as vLLM takes the operator's flags --runner and --convert."""
    runner, convert, own = verbatim.get("runner"), verbatim.get("convert"), model.task
    if runner == "generate":
        return "generate" if own in POOLING else own
    if convert == "embed":
        return "embed"
    if convert == "classify":
        return own if own in ("classify", "score") else "classify"
    return "embed" if runner == "pooling" and own not in POOLING else own


def refuse_deaf(inventory: Inventory) -> None:
    """Raise Unplannable for a model of speech where vLLM cannot read a file of sound."""
    engine = inventory.engine
    if inventory.model.task == "transcription" and engine.decodes_sound is False:
        raise Unplannable(
            f"cannot serve model {inventory.model.path}: it transcribes, and the environment of"
            f" vLLM {engine.version} has no package that reads files of sound; install one with"
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
