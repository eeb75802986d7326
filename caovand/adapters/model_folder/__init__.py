"""Read a model into a ModelCard.

A model is a folder with config.json and the headers of its weights, or the headers of GGUF files,
which an engine may store under a name.
"""

from caovand.adapters.model_folder.drafter import with_drafter
from caovand.adapters.model_folder.folder import (
    TOKENIZERS,
    file_identities,
    folder_of,
    read_model,
    read_named,
    shards_of,
)
from caovand.adapters.model_folder.tables import (
    MAX_BYTES,
    MAX_OTHER_BYTES,
    MAX_VALUES,
    ModelProblem,
)

__all__ = [
    "MAX_BYTES",
    "MAX_OTHER_BYTES",
    "MAX_VALUES",
    "TOKENIZERS",
    "ModelProblem",
    "file_identities",
    "folder_of",
    "read_model",
    "read_named",
    "shards_of",
    "with_drafter",
]  # fmt: skip
