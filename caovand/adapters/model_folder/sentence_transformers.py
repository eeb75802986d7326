"""Read the files that Sentence Transformers adds to a model's folder."""

from __future__ import annotations

import re
from pathlib import Path

from caovand.adapters.model_folder.tables import read_json, read_table
from caovand.core.checkpoint.budget import Budget
from caovand.core.checkpoint.model_task import (
    MODULES,
    TEXT_LENGTH,
    SentenceTransformer,
    pooling_folder,
    sentence_transformer,
)

_FOLDER = re.compile(r"\d{1,3}_[A-Za-z]{1,40}")
"""The pattern of its folders' names; a path that leads elsewhere is not followed."""


def read_sentence_transformer(folder: Path, budget: Budget) -> SentenceTransformer:
    """The settings in these files; raises ModelProblem."""
    modules = read_json(folder, MODULES, budget)
    lengths = read_table(folder, TEXT_LENGTH, budget) or {}
    inner = pooling_folder(modules)
    pooling = {}
    if inner and _FOLDER.fullmatch(inner):
        pooling = read_table(folder, f"{inner}/config.json", budget) or {}
    return sentence_transformer(modules, pooling, lengths)
