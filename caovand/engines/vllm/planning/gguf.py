"""Refuses llama.cpp's files, which vLLM reads slowly and only with another folder's config.json."""

from __future__ import annotations

from caovand.core.facts.inventory import ModelCard
from caovand.core.model_source.gguf import TYPE
from caovand.core.plan import Unplannable


def refuse(model: ModelCard) -> None:
    """Raise Unplannable for a model in GGUF files, with the checkpoint that serves instead."""
    if model.gguf is None:
        return
    file = model.path.rpartition("/")[2]
    name = TYPE.split(file.removesuffix(".gguf"), maxsplit=1)[0] or "the model"
    raise Unplannable(
        f"cannot serve model {model.path} with vLLM: GGUF files are for llama.cpp; set [engine]"
        ' kind = "llamacpp", or download a 4-bit safetensors checkpoint, such as'
        f" {name}-AWQ or {name}-GPTQ-Int4"
    )
