"""Explain a complete log of llama-server after the fact: phases, figures, the failure, advice."""

from __future__ import annotations

import re
from collections.abc import Sequence

from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.hit import MAX_TEXT
from caovand.engines.common.logs.signature import first
from caovand.engines.common.logs.whole_log import Explainer, Sample
from caovand.engines.llamacpp.healing.advice import advise
from caovand.engines.llamacpp.log.cause import find_cause
from caovand.engines.llamacpp.log.line import take_apart
from caovand.engines.llamacpp.log.phases import read
from caovand.engines.llamacpp.log.signatures import BY_ID, HARMLESS

_BEGIN = re.compile(r"llama_server: initializing|main: (?:starting|build)")
_SPEED = re.compile(
    r" *(?P<what>prompt eval|eval) time = .{0,60}\( *[\d.]+ ms per token, +(?P<rate>[\d.]+) tokens"
)
_FULL = re.compile(
    r"(?:srv +)?(?:decode|update_slots) ?: failed to (?:find (?:free space in the KV cache"
    r"|a memory slot)|decode the batch, n_batch = 1,)"
)
_NO_CARD = re.compile(
    r"\bno usable GPU found, --(?:gpu-layers|n-gpu-layers|main-gpu|split-mode|tensor-split)\b"
)
_RATES = {"prompt eval": "prompt_tps", "eval": "generation_tps"}


_REFUSAL = re.compile(
    r"(?:srv|slot|data stream)\b.{0,80}?(?:error[:=]|exception: |does not support) ?"
    r"(?P<why>.{1,400})"
)
"""How a server logs what it answered instead of a completion."""
_OF_REQUESTS = tuple(
    BY_ID[name]
    for name in (
        "ggml.template", "llama.request.batch", "llama.request.context", "llama.request.image",
        "llama.request.grammar", "family.grammar", "llama.template.request",
    )
)  # fmt: skip


def _read_rate(line: str) -> Sample | None:
    speed = _SPEED.match(take_apart(line).message[:300])
    return (_RATES[speed["what"]], float(speed["rate"])) if speed else None


def _find_cause(
    lines: Sequence[str], phase: str = "serving", *, alive: bool = False
) -> Finding | None:
    """The cause of the end, else what ends no server: no card is used, requests fail."""
    if found := find_cause(lines, phase, alive=alive):
        return found
    for number, line in enumerate(lines, 1):
        if _NO_CARD.search(line[:MAX_TEXT]):
            text = line.strip()[:MAX_TEXT]
            return Finding("gpu-absent", text, "resolve", {}, "llama.cards.unused", number)
        if _FULL.match(line) or _FULL.match(line[line.find(" W ") + 3 :][:MAX_TEXT]):
            text = line.strip()[:MAX_TEXT]
            return Finding("kv-cache-short", text, "serving", {}, "llama.cache.full", number)
        refused = _REFUSAL.search(line[:MAX_TEXT])
        if refused and (row := first(_OF_REQUESTS, refused["why"])):
            text = line.strip()[:MAX_TEXT]
            return Finding(row[0].failure, text, "serving", row[1], row[0].id, number)
    return None


# A refused option is reported before anything else is printed.
explain = Explainer(
    begins=lambda line: bool(_BEGIN.search(line[:200])),
    at_s=lambda line: take_apart(line).at_s,
    read=read,
    harmless=HARMLESS,
    find_cause=_find_cause,
    advise=advise,
    sample=_read_rate,
)
