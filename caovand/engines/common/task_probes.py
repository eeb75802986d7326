"""Requests for tasks other than generating text, in the formats of OpenAI's, Cohere's and vLLM's
clients: what to send, and whether the answer is valid."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from caovand.core.engine.record import TaskRequest, Upload
from caovand.core.model_task import ModelTask

RATE_HZ = 16_000
"""The sample rate of the audio that is sent: a second of silence."""
_SAMPLES = bytes(2 * RATE_HZ)
_FORMAT = struct.pack("<IHHIIHH", 16, 1, 1, RATE_HZ, 2 * RATE_HZ, 2, 16)  # PCM, one channel
_DATA = b"WAVEfmt " + _FORMAT + b"data" + struct.pack("<I", len(_SAMPLES)) + _SAMPLES
_SILENCE = b"RIFF" + struct.pack("<I", len(_DATA)) + _DATA
TEXTS = ("What does a supervisor do?", "It restarts an engine that hangs.")


def _tokens(model: str, prompt: Sequence[int] | str) -> Mapping[str, Any]:
    return {"model": model, "input": prompt if isinstance(prompt, str) else list(prompt)}


def _pair(model: str, prompt: Sequence[int] | str) -> Mapping[str, Any]:
    return {"model": model, "text_1": TEXTS[0], "text_2": _document(prompt)}


def _sound(model: str, prompt: Sequence[int] | str) -> Upload:
    fields = {"model": model, "language": "en", "temperature": "0"}
    return Upload(fields, "a.wav", _SILENCE)


def _rank_request(model: str, prompt: Sequence[int] | str) -> Mapping[str, Any]:
    return {"model": model, "query": TEXTS[0], "documents": [_document(prompt)]}


def _document(prompt: Sequence[int] | str) -> str:
    """Return a text unchanged, and a sample text for token ids, of which no pairs can be made."""
    return prompt if isinstance(prompt, str) else TEXTS[1]


def _find_flaw(key: str, answer: Any, results: str = "data") -> str:
    """The fault in the numbers under this key of the first result; "" if there is none."""
    try:
        numbers = list(_numbers(answer[results][0][key]))
    except (LookupError, TypeError):
        return f'it has no "{key}"'
    if not numbers:
        return f'its "{key}" is empty'
    wrong = [number for number in numbers if not math.isfinite(number)]
    return f'its "{key}" has a value that is not a number' if wrong else ""


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, list):
        for element in value:
            yield from _numbers(element)
    else:
        valid = isinstance(value, (int, float)) and not isinstance(value, bool)
        yield float(value) if valid else math.nan


def _missing_text(answer: Any) -> str:
    """Whether the answer lacks a text. It may be empty: a model can transcribe silence as
    nothing.
    """
    has_text = isinstance(answer, dict) and isinstance(answer.get("text"), str)
    return "" if has_text else 'it has no "text"'


EMBED = TaskRequest(
    "embedding", "/v1/embeddings", _tokens, lambda answer: _find_flaw("embedding", answer)
)
RERANK = TaskRequest(
    "score",
    "/v1/rerank",
    _rank_request,
    lambda answer: _find_flaw("relevance_score", answer, "results"),
)
WORKS: Mapping[ModelTask, TaskRequest] = MappingProxyType(
    {
        "embed": EMBED,
        "token_embed": TaskRequest(
            "pooling", "/pooling", _tokens, lambda answer: _find_flaw("data", answer)
        ),
        "token_classify": TaskRequest(
            "pooling", "/pooling", _tokens, lambda answer: _find_flaw("data", answer)
        ),
        "classify": TaskRequest(
            "classification", "/classify", _tokens, lambda answer: _find_flaw("probs", answer)
        ),
        "score": TaskRequest("score", "/score", _pair, lambda answer: _find_flaw("score", answer)),
        "transcription": TaskRequest(
            "transcription", "/v1/audio/transcriptions", _sound, _missing_text
        ),
    }
)
