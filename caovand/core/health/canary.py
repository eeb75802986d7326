"""Compare an engine's answer to a fixed prompt with its answer at the first proof of the same plan.

Greedy answers of a sound engine vary slightly. The batch, prefix cache hits, draft depth and newly
autotuned kernels change the order of summation, so two nearly equal tokens may swap, and the text
diverges from there. Only the first difference therefore counts, and only if the first answer
preferred its token there by more than rounding explains. A model with random weights prefers no
token, so it never counts. An answer that repeats one token always counts, if the first answer was
sure at most positions and did not repeat itself: rounding errors do not make a sound model stop
counting.

Everything else that may change an answer is part of the key of the stored one: plan, engine,
plugin, model files, cards, driver. If any of them changes, the next first answer is stored.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from caovand.core.document import into, listed, number, read_or_none, require, row, string, table
from caovand.core.facts.inventory import Inventory
from caovand.core.health.observation import ProgressCounters
from caovand.core.plan import Plan

PROMPT = "Count to twelve: one, two, three, four,"
"""Shorter than a block of any cache, so it never hits one; every model is certain of the
continuation."""
TOKENS = 16
MARGIN, COARSE_MARGIN = 1.0, 2.0
"""In nats. Rounding of fp16 and bf16 sums shifts a logit by hundredths to tenths; wrong data shifts
it by whole nats. With activations or a cache of few bits, a value near a rounding boundary moves by
a whole quantisation step, equivalent to several such errors."""
NOT_JSON = "not JSON compliant"
"""Part of the error that Python's json, and so a server, raises for NaN."""
MAX_ANSWERS = 32
"""The number of plans whose answers are stored; the oldest are dropped first."""
MAX_TEXT = 256  # characters per token
SUREST = 100.0  # nats; larger margins carry no more information


class Degenerate(Exception):
    """An answer that no sound engine produces."""


@dataclass(frozen=True)
class GreedyAnswer:
    """A greedy answer; `margins` are the leads of each token's logprob over the second best."""

    tokens: tuple[str, ...]
    margins: tuple[float, ...]

    @property
    def repeats(self) -> bool:
        """Whether it repeats a single token."""
        return len(self.tokens) > 1 and len(set(self.tokens)) == 1

    def sure(self, margin: float) -> bool:
        """Whether most tokens led by more than `margin`."""
        return 2 * sum(lead > margin for lead in self.margins) > len(self.margins)


Kept = Mapping[str, GreedyAnswer]
"""First answers by their keys, oldest first."""


def read(body: str, max_tokens: int = TOKENS) -> GreedyAnswer | None:
    """Parse a response of OpenAI completions with `logprobs: 2`; None if it contains no answer.

    At most `max_tokens` tokens are accepted. Raises Degenerate.
    """
    try:
        document = json.loads(body)["choices"][0]["logprobs"]
        tokens = tuple(str(token)[:MAX_TEXT] for token in document["tokens"])
        logprobs, tops = document["token_logprobs"], document["top_logprobs"]
        # Some servers write NaN as null.
        if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in logprobs):
            raise Degenerate("its logits are not finite numbers")
        margins = tuple(map(_margin, logprobs, tops))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return GreedyAnswer(tokens, margins) if 0 < len(tokens) == len(margins) <= max_tokens else None


def find_change(first: GreedyAnswer, now: GreedyAnswer, margin: float) -> str:
    """Describe how `now` differs from `first` by more than rounding explains; empty if it does not.

    Raises Degenerate.
    """
    if now.repeats and not first.repeats and first.sure(margin):
        raise Degenerate(f"it repeats {now.tokens[0]!r}")
    for place, (was, lead) in enumerate(zip(first.tokens, first.margins, strict=True)):
        token = now.tokens[place] if place < len(now.tokens) else ""
        if token != was:
            preferred = f"token {place + 1} is {token!r} instead of {was!r}"
            return f"{preferred}, which led by {lead:.1f} nats" if lead > margin else ""
    return ""


def was_alone(before: ProgressCounters | None, after: ProgressCounters | None) -> bool:
    """Whether no other request was served between these readings, while one answer was made."""
    if before is None or after is None:
        return False
    busy = (
        counters.running + counters.waiting + (counters.pending or 0)
        for counters in (before, after)
    )
    generated = after.generation_tokens - before.generation_tokens
    ended = after.requests_ended - before.requests_ended
    return not any(busy) and 0 <= generated <= TOKENS and 0 <= ended <= 1


def key_of(plan: Plan, inventory: Inventory, files: Collection[Any]) -> str:
    """Key under which a first answer is valid; `files` identify the model's files."""
    engine = inventory.engine
    seen = {
        "plan": replace(plan, key="").identity,  # the API key does not affect answers
        "engine": (engine.version, engine.torch, engine.flashinfer, engine.plugin),
        "files": list(files),
        "cards": [(gpu.name, gpu.uuid, gpu.driver) for gpu in inventory.gpus],
        "prompt": (PROMPT, TOKENS),
    }
    text = json.dumps(seen, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def to_document(kept: Kept) -> dict[str, Any]:
    """Encode the last MAX_ANSWERS first answers."""
    last = list(kept.items())[-MAX_ANSWERS:]
    return {key: [list(answer.tokens), list(answer.margins)] for key, answer in last}


def from_document(document: Any) -> dict[str, GreedyAnswer] | None:
    """Decode first answers; None if the document is unreadable."""
    return read_or_none(_KEPT, document)


def _margin(chosen: float, best: Any) -> float:
    """The lead over the second token; 0 if the two best tokens share one text, and so one entry.
    Such a position never counts."""
    second = sorted((float(value) for value in best.values()), reverse=True)[1:2]
    lead = chosen - (second[0] if second else chosen)
    return 0.0 if math.isnan(lead) else max(min(lead, SUREST), -SUREST)


_ANSWER = require(
    into(
        lambda parts: GreedyAnswer(*parts),
        row(listed(string(MAX_TEXT), TOKENS, 1), listed(number(), TOKENS, 1)),
    ),
    lambda answer: len(answer.tokens) == len(answer.margins),
    "does not have exactly one margin per token",
)
_KEPT = table(_ANSWER, MAX_ANSWERS)
