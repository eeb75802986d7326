"""Which task a model has, by its class and the files of Sentence Transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.engine.chat_template import NO_CHAT, with_template
from caovand.adapters.model_folder import ModelProblem, read_model
from caovand.core.checkpoint.model_task import SentenceTransformer, task_of
from tests import tiny_tasks

SIZES = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "vocab_size": 512,
    "max_position_embeddings": 8194, "torch_dtype": "float32",
}  # fmt: skip
LAST = {"1_Pooling/config.json": {"pooling_mode": "lasttoken"}}


def folder(place: Path, architecture: str, config: Any = None, files: Any = None) -> Path:
    """A model's folder without a template; `files` are added to it."""
    place.mkdir()
    document = {"architectures": [architecture], "model_type": "qwen3", **SIZES, **(config or {})}
    for name, content in {"config.json": document, "tokenizer.json": {}, **(files or {})}.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(json.dumps(content))
    tiny_tasks.write_tensors(place / "model.safetensors", {"model.norm.weight": (4,)})
    return place


FULL, BOTH = "full_attention", "encoder_attention"
MEAN = {"1_Pooling/config.json": {"pooling_mode_mean_tokens": True}}
SHORTER = {"sentence_bert_config.json": {"max_seq_length": 8192}}
ROWS: tuple[tuple[str, Any, Any, Any], ...] = (
    ("Qwen3ForCausalLM", {}, {}, ("generate", 8194, False, FULL)),
    ("Qwen3ForCausalLM", {}, {**tiny_tasks.POOLING, **LAST}, ("embed", 8194, False, FULL)),
    ("Qwen2ForCausalLM", {"is_causal": False}, tiny_tasks.POOLING, ("embed", 8194, True, BOTH)),
    ("LlamaModel", {}, {**tiny_tasks.POOLING, **MEAN}, ("embed", 8194, True, FULL)),
    ("XLMRobertaModel", {}, SHORTER, ("embed", 8192, True, BOTH)),
    ("BertForSequenceClassification", {"num_labels": 1}, {}, ("score", 8194, True, BOTH)),
    ("Qwen3ForSequenceClassification", {"id2label": {"0": ""}}, {}, ("score", 8194, False, FULL)),
    ("Qwen3ForSequenceClassification", {}, {}, ("classify", 8194, False, FULL)),
    ("BertForTokenClassification", {}, {}, ("token_classify", 8194, True, BOTH)),
    ("Qwen2ForRewardModel", {}, {}, ("token_classify", 8194, False, FULL)),
    ("HF_ColBERT", {}, {}, ("token_embed", 8194, True, BOTH)),
)


@pytest.mark.parametrize(("architecture", "config", "files", "expected"), ROWS)
def test_the_task_of_a_folder(
    tmp_path: Path, architecture: str, config: Any, files: Mapping[str, Any], expected: Any
) -> None:
    card = read_model(str(folder(tmp_path / "model", architecture, config, files)))
    assert (card.task, card.max_model_len, card.one_step, card.layer_types[0]) == expected


def test_a_whisper_has_the_context_and_the_layers_of_its_decoder(tmp_path: Path) -> None:
    more = {"num_hidden_layers": 9, "max_position_embeddings": None, **tiny_tasks.WHISPER}
    card = read_model(str(folder(tmp_path / "model", "WhisperForConditionalGeneration", more)))
    assert (card.task, card.max_model_len, len(card.layer_types)) == ("transcription", 64, 2)
    sound = tiny_tasks.WHISPER["max_source_positions"]
    assert (card.heads, card.notes, card.encoder_tokens) == (2, (), sound)


def test_a_written_reranker_is_known_by_its_name() -> None:
    files = SentenceTransformer()
    assert task_of("Qwen3ForCausalLM", {}, files, "Qwen3-Reranker-4B") == "score"
    assert task_of("Qwen3ForCausalLM", {}, files, "Qwen3-4B") == "generate"


@pytest.mark.parametrize("where", ["../../etc", "/etc", "1_Pooling/.."])
def test_a_module_that_leads_elsewhere_is_not_followed(tmp_path: Path, where: str) -> None:
    modules = [{"type": "sentence_transformers.models.Pooling", "path": where}]
    place = folder(tmp_path / "model", "Qwen3ForCausalLM", {}, {"modules.json": modules})
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/config.json").write_text("broken")
    assert read_model(str(place)).task == "embed"


def test_a_broken_file_of_sentence_transformers_is_named(tmp_path: Path) -> None:
    place = folder(tmp_path / "model", "BertModel")
    (place / "modules.json").write_text("{")
    with pytest.raises(ModelProblem, match=r"modules\.json: it is not JSON"):
        read_model(str(place))


@pytest.mark.parametrize(
    ("architecture", "config", "wanted", "noted"),
    [
        ("Qwen3ForCausalLM", {}, "", True),
        ("Qwen3ForCausalLM", {}, "{{ messages }}", False),
        ("Qwen3Model", {}, "", False),
        ("MistralForCausalLM", {"model_type": "mistral"}, "", False),
    ],
)
def test_a_base_model_says_that_chats_need_a_template(
    tmp_path: Path, architecture: str, config: Any, wanted: str, noted: bool
) -> None:
    card = with_template(read_model(str(folder(tmp_path / "m", architecture, config))), wanted)
    assert (NO_CHAT in card.notes) is noted
