"""Read the drafter that the configuration names into the card of the model that it drafts for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from caovand.adapters.model_folder.folder import folder_of, read_model
from caovand.adapters.model_folder.tables import ModelProblem, read_table
from caovand.core.checkpoint.budget import Budget
from caovand.core.checkpoint.values import first_count, table_value
from caovand.core.facts.drafter import Drafter
from caovand.core.facts.inventory import ModelCard, Weights

ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel")
OWN_FLAG = "or pass --speculative-config in [engine] extra_args, without a memory forecast"


def with_drafter(target: ModelCard, path: str) -> ModelCard:
    """The target with the layers of this drafter in place of an MTP head; raises ModelProblem."""
    card = read_model(path)
    folder = folder_of(card)
    if folder is None:
        raise ModelProblem(
            f"draft with {path}",
            "it is not on this machine",
            f"run `sudo caovanctl model pull {path}`, and set [model] drafter to its folder",
        )
    if card.architecture not in ARCHITECTURES:
        raise ModelProblem(
            f"draft with {path}",
            f"its architecture is {card.architecture}, but caovan can only draft with "
            f"{' and '.join(ARCHITECTURES)}",
            f"set [model] drafter to a DFlash drafter for this model, {OWN_FLAG}",
        )
    config = read_table(folder, "config.json", Budget(time.thread_time)) or {}
    drafter = _describe(path, card, config)
    kept = tuple(weights for weights in target.weights if weights.part != "mtp")
    return replace(
        target,
        drafter=drafter,
        mtp_layers=drafter.layers,
        weights=(*kept, *_drafting_weights(card, _copied_bytes(card, drafter, config))),
    )


def _describe(path: str, card: ModelCard, config: Mapping[str, Any]) -> Drafter:
    table = table_value(config, "dflash_config")
    reads = table.get("target_layer_ids")
    known = isinstance(reads, list) and all(type(layer) is int and layer >= 0 for layer in reads)
    block = first_count(config, "block_size") or first_count(table, "block_size")
    if not known or not reads or block < 2:
        raise ModelProblem(
            f"draft with {path}",
            "its config.json lacks block_size, or target_layer_ids in dflash_config",
            f"download the drafter again, {OWN_FLAG}",
        )
    return Drafter(
        path=card.path,
        architecture=card.architecture,
        block=block,
        reads=tuple(reads),
        target_layers=first_count(config, "num_target_layers"),
        target_width=first_count(config, "target_hidden_size") or card.hidden_size,
        vocab_size=card.vocab_size,
        layers=len(card.layer_types),
        width=card.hidden_size,
        heads=card.heads,
        kv_heads=card.kv_heads,
        head_dim=card.head_dim,
        windowed=bool(table.get("use_swa")) or "sliding_attention" in card.layer_types,
        from_anchor=bool(table.get("sample_from_anchor")),
    )


def _copied_bytes(card: ModelCard, drafter: Drafter, config: Mapping[str, Any]) -> int:
    """Parameters of the layers that every rank has whole: the projection of what it reads, and the
    tables by which DFlash2 chooses among candidates."""
    rank = first_count(table_value(config, "dflash_config"), "selector_rank")
    read = len(drafter.reads) * drafter.target_width * drafter.width
    return read + rank * (2 * card.vocab_size + card.hidden_size)


def _drafting_weights(card: ModelCard, copied: int) -> Iterator[Weights]:
    """Its weights as drafting layers'. Its own embedding or head counts too, though vLLM may share
    the target's."""
    for weights in card.weights:
        share = replace(weights, part="mtp", layers=())
        size = copied * (4 if weights.dtype == "F32" else 2)
        if weights.part == "layers" and weights.sharding == "sharded" and size < weights.size:
            yield replace(share, sharding="replicated", size=size)
            share = replace(share, size=weights.size - size)
            copied = 0
        yield share
