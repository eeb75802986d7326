"""A model's task. Every task except text generation has an endpoint of its own.

The names are vLLM's, except "score": a classifier with one label, which reranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

ModelTask = Literal[
    "generate", "embed", "token_embed", "classify", "score", "token_classify", "transcription"
]
TITLES: Mapping[str, str] = {
    "generate": "text generation",
    "embed": "embeddings",
    "token_embed": "token embeddings",
    "classify": "classification",
    "score": "reranking",
    "token_classify": "token rewards or labels",
    "transcription": "transcription",
}
POOLING = frozenset(TITLES) - {"generate", "transcription"}
"""Tasks that generate no tokens: the states of a prompt are pooled into numbers."""
