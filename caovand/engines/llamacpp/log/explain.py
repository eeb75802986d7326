"""Explain a complete log of llama-server after the fact: phases, values, the failure, advice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.hit import MAX_TEXT, Hit, finding, line_finding
from caovand.engines.common.logs.signature import first
from caovand.engines.common.logs.whole_log import Explainer, FigureSample
from caovand.engines.llamacpp.healing.advice import advise
from caovand.engines.llamacpp.log.cause import find_cause
from caovand.engines.llamacpp.log.line import take_apart
from caovand.engines.llamacpp.log.phases import read
from caovand.engines.llamacpp.log.signatures import HARMLESS, SIGNATURES

_BEGIN = re.compile(r"llama_server: initializing|main: (?:starting(?! the main loop)|build)")
_SPEED = re.compile(
    r" *(?P<what>prompt eval|eval) time = .{0,60}\( *[\d.]+ ms per token, +(?P<rate>[\d.]+) tokens"
)
_FULL = re.compile(
    r"(?:srv +)?(?:decode|update_slots) ?: failed to (?:find (?:free space in the KV cache"
    r"|a memory slot)|decode the batch, n_batch = 1,)"
)
_REFUSED = re.compile(
    r".{0,80}\b(?:send_error ?: task id = \d{1,9}, error|got exception"
    r"|to_send: error|operator\(\)(?=: http client error)): (?P<reason>.{1,300})"
)
_NO_CARD = re.compile(
    r"\bno usable GPU found, --(?:gpu-layers|n-gpu-layers|main-gpu|split-mode|tensor-split)\b"
)
_NO_CUDA = re.compile(r"ggml_\w{1,20}_init: failed to initialize (?:CUDA|ROCm|MUSA): ")
_CARD_FOUND = re.compile(
    r".{0,60}?(?:found [1-9]\d? (?:CUDA|ROCm|MUSA|Vulkan) dev|using device [A-Z])"
)
"""Another backend's library may find the card that one cannot start."""
_UNBUILT = re.compile(r".{0,300}\|(?: CUDA = 0 \|)? BLAS = 0 \|")
"""The features of a build without any library for a card, as releases before b4400 list them."""
_REFUSED_VALUE = ("llama.args.value", "llama.args.valueless")
_MAX_USAGE_LINES = 8
"""Lines after a refused value within which the program prints the option's usage."""
_CHOICES = re.compile(
    r"(?:-{1,2}[\w-]{1,40},? {1,6}){0,4}-{1,2}[\w-]{1,40} [\[{<](?P<values>[^\]}>]+)"
)
_KNOWN_CHOICES = {"--flash-attn": "on|off|auto", "-fa": "on|off|auto"}
_RATES = {"prompt eval": "prompt_tps", "eval": "generation_tps"}


def _read_rate(line: str) -> FigureSample | None:
    speed = _SPEED.match(take_apart(line).message[:300])
    return (_RATES[speed["what"]], float(speed["rate"])) if speed else None


def _find_cause(
    lines: Sequence[str], phase: str = "serving", *, alive: bool = False
) -> Finding | None:
    """The cause of the server's end, else a problem that ends none: no card in use, refused
    requests."""
    if fatal := find_cause(lines, phase, alive=alive):
        if fatal.signature not in _REFUSED_VALUE:
            return fatal
        return replace(fatal, captures={**fatal.captures, **_choices(fatal, lines)})
    on_card = any(_CARD_FOUND.match(line[:MAX_TEXT]) for line in lines)
    for number, line in enumerate(lines, 1):
        if not on_card and _NO_CUDA.match(message := take_apart(line).message):
            row = first(SIGNATURES, message)
            return finding(Hit(number - 1, message, "resolve", *row)) if row else None
        if _NO_CARD.search(line[:MAX_TEXT]):
            return line_finding("gpu-absent", line, number, "resolve", "llama.cards.unused")
        if _FULL.match(line) or _FULL.match(line[line.find(" W ") + 3 :][:MAX_TEXT]):
            return line_finding("kv-cache-short", line, number, "serving", "llama.cache.full")
        refused = _REFUSED.match(line)
        if refused and (row := first(SIGNATURES, refused["reason"])):
            return finding(Hit(number - 1, refused["reason"], "serving", *row))
    for number, line in enumerate(() if on_card else lines, 1):
        if _UNBUILT.match(line):
            return line_finding("gpu-absent", line, number, "resolve", "llama.cards.unbuilt")
    return None


def _choices(refused: Finding, lines: Sequence[str]) -> Mapping[str, str]:
    """The values that an option takes, by the usage after its refusal; empty without any."""
    option = refused.captures["option"]
    usage = (_CHOICES.match(line) for line in lines[refused.line : refused.line + _MAX_USAGE_LINES]
             if option in line)  # fmt: skip
    listed = next((match["values"] for match in usage if match), _KNOWN_CHOICES.get(option, ""))
    values = [value for value in re.split(r"[|,] ?", listed) if value]
    return {"values": ", ".join(values), "first": values[0]} if len(values) > 1 else {}


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
