"""Whether an engine answers a fixed prompt as it did at the first proof of the same plan.

Greedy answers of a sound engine differ a little. Who else is in the batch, a hit of the prefix
cache, the drafting depth and kernels that autotuning chose anew at a start change the order of
sums, so two tokens that were nearly equal may trade places, and all after them is another text.
Therefore only the first differing place counts, and only if the first answer preferred its token
there by more than rounding explains. A model with random weights prefers none, so it never counts.
An answer that repeats one token counts whatever led there, if the first one was sure at most places
and did not: a sound model that can count does not stop counting for a rounding error.

What else may change an answer is in the key of the kept one: plan, engine, plugin, the model's
files, cards, driver. With another of them the next first answer is kept.
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
from caovand.core.health.observation import Progress
from caovand.core.plan import Plan

PROMPT = "Count to twelve: one, two, three, four,"
"""Short of a block of any cache, so it never hits one; what follows is certain to any model."""
TOKENS = 16
# In nats. Rounding of fp16 and bf16 sums moves a logit by hundredths to tenths; wrong data moves
# it by whole ones. Where activations or the cache are rounded to few bits, a value next to a border
# moves by a whole step, which is worth several such roundings.
MARGIN, COARSE_MARGIN = 1.0, 2.0
NOT_JSON = "not JSON compliant"
"""Part of the error that Python's json raises for NaN, and so of a server's for such an answer."""
KEPT = 32
"""How many plans' answers are kept, the newest."""
MAX_TEXT = 256  # characters of a token
SUREST = 100.0  # nats; a margin above says no more


class Degenerate(Exception):
    """An answer that no sound engine gives."""


@dataclass(frozen=True)
class GreedyAnswer:
    """A greedy answer; `margins` are how far each token's logprob was above the second best."""

    tokens: tuple[str, ...]
    margins: tuple[float, ...]

    @property
    def repeats(self) -> bool:
        """Whether it is one token again and again."""
        return len(self.tokens) > 1 and len(set(self.tokens)) == 1

    def sure(self, margin: float) -> bool:
        """Whether most tokens led by more than this."""
        return 2 * sum(lead > margin for lead in self.margins) > len(self.margins)


Kept = Mapping[str, GreedyAnswer]
"""First answers by their keys, oldest first."""


def read(body: str, most: int = TOKENS) -> GreedyAnswer | None:
    """The answer in the JSON of OpenAI's completions with `logprobs: 2`, None if it has none.

    It has at most `most` tokens. Raises Degenerate.
    """
    try:
        found = json.loads(body)["choices"][0]["logprobs"]
        tokens = tuple(str(token)[:MAX_TEXT] for token in found["tokens"])
        logprobs, tops = found["token_logprobs"], found["top_logprobs"]
        # Some servers write NaN as null.
        if not all(isinstance(one, (int, float)) and math.isfinite(one) for one in logprobs):
            raise Degenerate("its logits are not numbers")
        margins = tuple(map(_margin, logprobs, tops))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return GreedyAnswer(tokens, margins) if 0 < len(tokens) == len(margins) <= most else None


def find_change(first: GreedyAnswer, now: GreedyAnswer, margin: float) -> str:
    """How `now` differs from `first` by more than rounding explains; empty if it does not.

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


def was_alone(before: Progress | None, after: Progress | None) -> bool:
    """Whether nobody else was served between these readings, while one answer was made."""
    if before is None or after is None:
        return False
    busy = (one.running + one.waiting + (one.pending or 0) for one in (before, after))
    generated = after.generation_tokens - before.generation_tokens
    ended = after.requests_ended - before.requests_ended
    return not any(busy) and 0 <= generated <= TOKENS and 0 <= ended <= 1


def key_of(plan: Plan, inventory: Inventory, files: Collection[Any]) -> str:
    """What a first answer holds for; `files` identify the model's files."""
    engine = inventory.engine
    seen = {
        "plan": replace(plan, key="").identity,  # another API key changes no answer
        "engine": (engine.version, engine.torch, engine.flashinfer, engine.plugin),
        "files": list(files),
        "cards": [(gpu.name, gpu.uuid, gpu.driver) for gpu in inventory.gpus],
        "prompt": (PROMPT, TOKENS),
    }
    text = json.dumps(seen, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def to_document(kept: Kept) -> dict[str, Any]:
    """The document to keep of first answers: the last KEPT of them."""
    last = list(kept.items())[-KEPT:]
    return {key: [list(one.tokens), list(one.margins)] for key, one in last}


def from_document(document: Any) -> dict[str, GreedyAnswer] | None:
    """The first answers in a document; None if it is unreadable."""
    return read_or_none(_KEPT, document)


def _margin(chosen: float, best: Any) -> float:
    """0 if the two best tokens share one text, and so one entry: such a place never counts."""
    second = sorted((float(value) for value in best.values()), reverse=True)[1:2]
    lead = chosen - (second[0] if second else chosen)
    return 0.0 if math.isnan(lead) else max(min(lead, SUREST), -SUREST)


_ANSWER = require(
    into(
        lambda parts: GreedyAnswer(*parts),
        row(listed(string(MAX_TEXT), TOKENS, 1), listed(number(), TOKENS, 1)),
    ),
    lambda answer: len(answer.tokens) == len(answer.margins),
    "has not one margin for each token",
)
_KEPT = table(_ANSWER, KEPT)
