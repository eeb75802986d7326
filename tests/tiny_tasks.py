"""Create tiny random models for tasks other than text generation: tiny_tasks.py DENSE OUT.

DENSE is the tiny Qwen3 of packaging/demo/make_model.py, whose tokenizer they share. The tensors are
named as in the real model families. It needs only the standard library.
"""

from __future__ import annotations

import array
import json
import random
import shutil
import struct
import sys
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

WIDTH, INNER, HEADS, LAYERS, VOCABULARY = 64, 128, 2, 2, 512
SHARED = ("tokenizer.json", "tokenizer_config.json")
# Whisper's: the encoder's input for 30 s, and the decoder's context
MELS, FRAMES, ANSWER = 80, 1500, 64
POOLING = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
        {
            "idx": 2,
            "name": "2",
            "path": "2_Normalize",
            "type": "sentence_transformers.models.Normalize",
        },
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": WIDTH, "pooling_mode_lasttoken": True},
}

Shapes = Mapping[str, tuple[int, ...]]


def write_tensors(file: Path, shapes: Shapes) -> None:
    """Write random 32-bit tensors; the weights of norms are ones."""
    chance, header, parts, at = random.Random(0), {}, [], 0
    for name, shape in shapes.items():
        count = prod(shape)
        is_norm = "norm" in name.lower() and name.endswith("weight")
        values = [1.0] * count if is_norm else [chance.gauss(0, 0.05) for _ in range(count)]
        data = array.array("f", values).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    file.write_bytes(b"".join((struct.pack("<Q", len(text)), text, *parts)))


def _linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}


def bert(prefix: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a BERT."""
    found: dict[str, tuple[int, ...]] = {
        f"{prefix}embeddings.word_embeddings.weight": (VOCABULARY, WIDTH),
        f"{prefix}embeddings.position_embeddings.weight": (512, WIDTH),
        f"{prefix}embeddings.token_type_embeddings.weight": (2, WIDTH),
        **_norm(f"{prefix}embeddings.LayerNorm"),
        **_linear(f"{prefix}pooler.dense", WIDTH, WIDTH),
    }
    for n in range(LAYERS):
        layer = f"{prefix}encoder.layer.{n}"
        for part in ("query", "key", "value"):
            found.update(_linear(f"{layer}.attention.self.{part}", WIDTH, WIDTH))
        found.update(_linear(f"{layer}.attention.output.dense", WIDTH, WIDTH))
        found.update(_norm(f"{layer}.attention.output.LayerNorm"))
        found.update(_linear(f"{layer}.intermediate.dense", INNER, WIDTH))
        found.update(_linear(f"{layer}.output.dense", WIDTH, INNER))
        found.update(_norm(f"{layer}.output.LayerNorm"))
    return found


BERT = {
    "model_type": "bert", "hidden_size": WIDTH, "intermediate_size": INNER,
    "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY,
    "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu",
    "layer_norm_eps": 1e-12, "position_embedding_type": "absolute", "torch_dtype": "float32",
    "pad_token_id": 509,
}  # fmt: skip


def qwen2(head: Shapes) -> dict[str, tuple[int, ...]]:
    """The tensors of a Qwen2 with this output head."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
        **head,
    }
    for n in range(LAYERS):
        layer = f"model.layers.{n}"
        for part in ("q_proj", "k_proj", "v_proj"):
            found.update(_linear(f"{layer}.self_attn.{part}", WIDTH, WIDTH))
        found[f"{layer}.self_attn.o_proj.weight"] = (WIDTH, WIDTH)
        found[f"{layer}.mlp.gate_proj.weight"] = (INNER, WIDTH)
        found[f"{layer}.mlp.up_proj.weight"] = (INNER, WIDTH)
        found[f"{layer}.mlp.down_proj.weight"] = (WIDTH, INNER)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}.{norm}.weight"] = (WIDTH,)
    return found


QWEN2 = {
    "model_type": "qwen2", "hidden_size": WIDTH, "intermediate_size": INNER,
    "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "hidden_act": "silu", "torch_dtype": "float32", "tie_word_embeddings": False,
    "use_sliding_window": False,
}  # fmt: skip


def whisper() -> dict[str, tuple[int, ...]]:
    """The tensors of a Whisper."""
    found: dict[str, tuple[int, ...]] = {
        "model.encoder.conv1.weight": (WIDTH, MELS, 3),
        "model.encoder.conv1.bias": (WIDTH,),
        "model.encoder.conv2.weight": (WIDTH, WIDTH, 3),
        "model.encoder.conv2.bias": (WIDTH,),
        "model.encoder.embed_positions.weight": (FRAMES, WIDTH),
        "model.decoder.embed_tokens.weight": (VOCABULARY, WIDTH),
        "model.decoder.embed_positions.weight": (ANSWER, WIDTH),
    }
    for side in ("encoder", "decoder"):
        found.update(_norm(f"model.{side}.layer_norm"))
        for n in range(LAYERS):
            layer = f"model.{side}.layers.{n}"
            for kind in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
                for part in ("q_proj", "v_proj", "out_proj"):
                    found.update(_linear(f"{layer}.{kind}.{part}", WIDTH, WIDTH))
                found[f"{layer}.{kind}.k_proj.weight"] = (WIDTH, WIDTH)
                found.update(_norm(f"{layer}.{kind}_layer_norm"))
            found.update(_linear(f"{layer}.fc1", INNER, WIDTH))
            found.update(_linear(f"{layer}.fc2", WIDTH, INNER))
            found.update(_norm(f"{layer}.final_layer_norm"))
    return found


WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper",
    "is_encoder_decoder": True, "d_model": WIDTH, "encoder_layers": LAYERS,
    "decoder_layers": LAYERS, "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": INNER, "decoder_ffn_dim": INNER, "num_mel_bins": MELS,
    "max_source_positions": FRAMES, "max_target_positions": ANSWER, "vocab_size": VOCABULARY,
    "activation_function": "gelu", "scale_embedding": False, "torch_dtype": "float32",
    "decoder_start_token_id": 501, "eos_token_id": 509, "bos_token_id": 509, "pad_token_id": 509,
}  # fmt: skip
HEARS = {
    "feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "WhisperProcessor",
    "feature_size": MELS, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400,
    "chunk_length": 30, "n_samples": 480000, "nb_max_frames": 3000, "padding_side": "right",
    "padding_value": 0.0, "return_attention_mask": False,
}  # fmt: skip


def make(
    dense: Path, folder: Path, config: Mapping[str, Any], shapes: Shapes, more: Mapping[str, Any]
) -> Path:
    """Create a model's folder, with the dense model's tokenizer and the files in `more`."""
    folder.mkdir(parents=True)
    for name in SHARED:
        shutil.copy(dense / name, folder)
    write_tensors(folder / "model.safetensors", shapes)
    return _write(folder, {"config.json": config, **more})


def _write(folder: Path, documents: Mapping[str, Any]) -> Path:
    for name, document in documents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(document))
    return folder


def embedder(dense: Path, folder: Path) -> Path:
    """A causal model that embeds by its last token, in the format of Qwen3-Embedding."""
    shutil.copytree(dense, folder)
    return _write(folder, POOLING)


def encoder(dense: Path, folder: Path) -> Path:
    """A BERT that embeds by its first token, in the format of bge-small."""
    config = {"architectures": ["BertModel"], **BERT}
    pooling = {**POOLING, "1_Pooling/config.json": {"pooling_mode_cls_token": True}}
    return make(dense, folder, config, bert(""), pooling)


def labelled(*labels: str) -> Callable[[Path, Path], Path]:
    """A BERT classifier with these labels; with one label, it scores a pair of texts, like
    ms-marco-MiniLM."""

    def maker(dense: Path, folder: Path) -> Path:
        config = {
            "architectures": ["BertForSequenceClassification"], **BERT,
            "id2label": {str(at): label for at, label in enumerate(labels)},
            "label2id": {label: at for at, label in enumerate(labels)},
        }  # fmt: skip
        shapes = {**bert("bert."), **_linear("classifier", len(labels), WIDTH)}
        return make(dense, folder, config, shapes, {})

    return maker


def reward(dense: Path, folder: Path) -> Path:
    """A reward model in the format of Qwen2.5-Math-RM."""
    head = {**_linear("score.0", WIDTH, WIDTH), **_linear("score.2", 1, WIDTH)}
    config = {"architectures": ["Qwen2ForRewardModel"], **QWEN2}
    return make(dense, folder, config, qwen2(head), {})


def transcriber(dense: Path, folder: Path) -> Path:
    """A Whisper."""
    made = make(dense, folder, WHISPER, whisper(), {"preprocessor_config.json": HEARS})
    speak = ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|translate|>",
             "<|notimestamps|>", "<|nospeech|>", "<|startofprev|>", "<|startoflm|>")  # fmt: skip
    path = made / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    words = tokenizer["model"]["vocab"]
    for n, token in enumerate(speak):
        place = 501 + n  # replaces a word of the text
        for word in [word for word, number in words.items() if number == place]:
            del words[word]
            merges = tokenizer["model"]["merges"]
            joined = [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
            tokenizer["model"]["merges"] = [
                pair
                for pair, text in zip(merges, joined, strict=True)
                if text.replace(" ", "") != word and word not in text.split(" ")
            ]
        tokenizer["added_tokens"].append({
            "id": place, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True,
        })  # fmt: skip
    path.write_text(json.dumps(tokenizer))
    return made


KINDS: Mapping[str, Callable[[Path, Path], Path]] = {
    "embedder": embedder, "encoder": encoder, "reranker": labelled("LABEL_0"),
    "classifier": labelled("sad", "calm", "glad"), "reward": reward, "transcriber": transcriber,
}  # fmt: skip

if __name__ == "__main__":
    for kind, maker in KINDS.items():
        maker(Path(sys.argv[1]), Path(sys.argv[2]) / kind)
