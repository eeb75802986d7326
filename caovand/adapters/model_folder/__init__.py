"""Reads a model into a ModelCard: a folder with config.json and the headers of its weights, or the
headers of GGUF files.
"""

from caovand.adapters.model_folder.folder import (
    LARGEST,
    LARGEST_OTHER,
    MOST_VALUES,
    TOKENIZERS,
    ModelProblem,
    read_model,
    shards_of,
)

__all__ = [
    "LARGEST", "LARGEST_OTHER", "MOST_VALUES", "TOKENIZERS", "ModelProblem", "read_model",
    "shards_of",
]  # fmt: skip
