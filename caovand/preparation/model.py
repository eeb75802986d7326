"""The model that a configuration names, as its engine reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from caovand.adapters import model_folder
from caovand.adapters.engine import chat_template, scales
from caovand.adapters.engine.choice import chosen_engine
from caovand.core.checkpoint.budget import BadHeader
from caovand.core.config.schema import Config
from caovand.core.facts.inventory import ModelCard


def read_model(config: Config, environ: Mapping[str, str]) -> ModelCard:
    """The configured model with its effective chat template. Raises ModelProblem."""
    engine = chosen_engine(config)
    if config.model.drafter and engine.arguments.drafter is None:
        raise model_folder.ModelProblem(
            f"draft with {config.model.drafter}",
            f"[model] drafter is for vLLM, but the engine is {engine.title}",
            'set [engine] kind = "vllm", or remove the key',
        )
    if engine.models is not None:
        return model_folder.read_named(engine.models, config, environ)
    arguments = engine.arguments
    weights = not arguments.invents_weights(config)
    card = model_folder.read_model(config.model.path, weights=weights)
    if config.policy.activations == "int8" and card.gptq and weights:
        card = replace(card, negative_scale=_negative_scale(card))
    drafter = arguments.drafter(config) if arguments.drafter and card.architecture else ""
    card = model_folder.with_drafter(card, drafter) if drafter else card
    return chat_template.with_template(card, arguments.chat_template(config))


def _negative_scale(card: ModelCard) -> str | None:
    """The first tensor with a negative scale; "" if all are positive, None if none can be read."""
    shards = model_folder.shards_of(card)
    for shard in shards:
        try:
            scale = scales.find_negative(shard)
        except BadHeader as problem:
            fact, remedy = str(problem), "download the file again"
            raise model_folder.ModelProblem(f"read {shard}", fact, remedy) from None
        except OSError as problem:
            fact = str(problem.strerror)
            raise model_folder.ModelProblem(f"read {shard}", fact, "check the disk") from problem
        if scale:
            return scale
    return "" if shards else None
