"""Detect a model's task as vLLM does: from its class and its Sentence Transformers files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caovand.core.checkpoint.values import first_count, table_value
from caovand.core.facts.inventory import ModelCard
from caovand.core.model_task import POOLING, ModelTask

MODULES, TEXT_LENGTH = "modules.json", "sentence_bert_config.json"
"""Files of Sentence Transformers: the model's modules, and the maximum text length."""
ENCODER = "encoder_attention"
"""The layer type that needs no cache."""
_SUFFIXES: tuple[tuple[str, ModelTask], ...] = (
    ("ForCausalLM", "generate"),
    ("ChatModel", "generate"),
    ("LMHeadModel", "generate"),
    ("ForTextEncoding", "embed"),
    ("EmbeddingModel", "embed"),
    ("ForEmbedding", "embed"),
    ("ForMaskedLM", "embed"),
    ("ForSequenceClassification", "classify"),
    ("ForAudioClassification", "classify"),
    ("ForImageClassification", "classify"),
    ("ForVideoClassification", "classify"),
    ("ClassificationModel", "classify"),
    ("ForRanking", "score"),
    ("ForTokenClassification", "token_classify"),
    ("ForRewardModeling", "token_classify"),
    ("RewardModel", "token_classify"),
    ("ForRetrieval", "token_embed"),
    ("Model", "embed"),
)
"""Suffixes of class names; the first match counts."""
_MULTI_VECTOR = ("ColBERT", "ColQwen", "ColPali", "ColModern", "NemotronEmbed")
_TEXT = frozenset({
    "ChatGLMModel", "MiDashengLMModel", "MossAudioModel", "Qwen2_5OmniModel", "UltravoxModel",
})  # fmt: skip
"""Models that generate text although their names suggest otherwise."""
_SPEECH = frozenset({
    "WhisperForConditionalGeneration", "CohereAsrForConditionalGeneration",
    "FireRedASR2ForConditionalGeneration", "FunASRForConditionalGeneration",
    "MossTranscribeDiarizeForConditionalGeneration",
})  # fmt: skip
"""Models that only transcribe: vLLM offers them no completions. Other audio models also chat."""
_ENCODERS = ("Bert", "BERT", "Roberta", "Bidirectional", "Gte")
_WHOLE = ("mean", "cls")
"""Pooling types that need all states at once."""


@dataclass(frozen=True)
class SentenceTransformer:
    """Sentence Transformers files: the pooling type ("" without a pooling module) and the maximum
    text length in tokens (0 if unset)."""

    pools: bool = False
    pooling: str = ""
    max_tokens: int = 0


def pooling_folder(modules: Any) -> str | None:
    """The folder with the pooling configuration; None for a model without pooling."""
    for module in modules if isinstance(modules, Sequence) else ():
        if isinstance(module, Mapping) and str(module.get("type")).endswith(".Pooling"):
            return str(module.get("path", ""))
    return None


def sentence_transformer(
    modules: Any, pooling: Mapping[str, Any], lengths: Mapping[str, Any]
) -> SentenceTransformer:
    """Parse these files; raises BadConfig."""
    mode = pooling.get("pooling_mode")
    named = [str(mode)] if isinstance(mode, str) else []
    named += [name for name, value in pooling.items() if value is True]
    return SentenceTransformer(
        pools=pooling_folder(modules) is not None,
        pooling=next(
            (kind for kind in ("mean", "cls", "last") if any(kind in n for n in named)), ""
        ),
        max_tokens=first_count(lengths, "max_seq_length"),
    )


def task_of(
    architecture: str, config: Mapping[str, Any], files: SentenceTransformer, name: str = ""
) -> ModelTask:
    """Task of a model with this architecture; `name` is its folder's name."""
    if architecture in _SPEECH:
        return "transcription"
    if architecture in _TEXT:
        return "generate"
    if any(mark in architecture for mark in _MULTI_VECTOR):
        return "token_embed"
    usual: ModelTask = next(
        (task for end, task in _SUFFIXES if architecture.endswith(end)), "generate"
    )
    if usual == "classify":
        return "score" if label_count(config) == 1 else "classify"
    if is_written_reranker(architecture, name):
        return "score"
    return "embed" if files.pools and usual == "generate" else usual


def is_written_reranker(architecture: str, name: str) -> bool:
    """Whether a text model ranks by the probability of "yes": Qwen3-Reranker, as published."""
    return architecture == "Qwen3ForCausalLM" and "qwen3-reranker" in name.lower()


def label_count(config: Mapping[str, Any]) -> int:
    """Number of labels of a classifier; Transformers' default is 2."""
    named = config.get("id2label")
    return len(table_value(config, "id2label")) if named else first_count(config, "num_labels") or 2


def with_task(card: ModelCard, config: Mapping[str, Any], files: SentenceTransformer) -> ModelCard:
    """Add the task and its consequences to the card; raises BadConfig."""
    name = card.path.rstrip("/").rpartition("/")[2]
    task = task_of(card.architecture, config, files, name)
    if task not in POOLING:
        return replace(card, task=task)
    limit = min(card.max_model_len, files.max_tokens or card.max_model_len)
    both_ways = _sees_both_ways(card.architecture, config)
    return replace(
        card,
        task=task,
        mtp_layers=0,
        max_model_len=limit,
        limit_known=card.limit_known or bool(files.max_tokens),
        layer_types=(ENCODER,) * len(card.layer_types) if both_ways else card.layer_types,
        one_step=both_ways or files.pooling in _WHOLE,
    )


def _sees_both_ways(architecture: str, config: Mapping[str, Any]) -> bool:
    """Whether tokens also attend to later tokens; such a model needs no cache."""
    text = table_value(config, "text_config") or config
    marked = any(mark in architecture for mark in _ENCODERS)
    stated = text.get("is_causal") is False or text.get("use_bidirectional_attention") is True
    return marked or stated
