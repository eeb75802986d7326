"""Whether an engine still answers a fixed prompt as it did earlier in its life.

Greedy answers of a sound engine differ a little: who else is in the batch, and a hit of the prefix
cache, change the order of sums, so two tokens that were nearly equal may trade places, and all
after them is another text. Therefore only the first differing place counts, and only if the first
answer preferred its token there by more than MARGIN. Answers of two starts are not compared: their
kernels, and even the files of the model, may differ.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

PROMPT = "Count to twelve: one, two, three, four,"
"""Short of a block of any cache, so it never hits one; what follows is certain to any model."""
TOKENS = 16
# In nats. Rounding of fp16 and bf16 sums moves a logit by hundredths to tenths; wrong data moves
# it by whole ones.
MARGIN = 1.0
NOT_JSON = "not JSON compliant"
"""What Python's json says of NaN, and so the server of an answer that has it."""


class Degenerate(Exception):
    """An answer that no sound engine gives."""


@dataclass(frozen=True)
class Greedy:
    """A greedy answer; `margins` are how far each token's logprob was above the second best."""

    tokens: tuple[str, ...]
    margins: tuple[float, ...]


def read(body: str) -> Greedy | None:
    """The answer in the JSON of OpenAI's completions with `logprobs: 2`, None if it has none.

    Raises Degenerate.
    """
    try:
        found = json.loads(body)["choices"][0]["logprobs"]
        tokens = tuple(str(token) for token in found["tokens"])
        logprobs, tops = found["token_logprobs"], found["top_logprobs"]
        # Some servers write NaN as null.
        if not all(isinstance(one, (int, float)) and math.isfinite(one) for one in logprobs):
            raise Degenerate("its logits are not numbers")
        margins = tuple(map(_margin, logprobs, tops))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return Greedy(tokens, margins) if tokens and len(margins) == len(tokens) else None


def changed(first: Greedy, now: Greedy) -> str:
    """How `now` differs from `first` by more than rounding explains; empty if it does not."""
    for place, (was, margin) in enumerate(zip(first.tokens, first.margins, strict=True)):
        token = now.tokens[place] if place < len(now.tokens) else ""
        if token != was:
            preferred = f"token {place + 1} is {token!r} instead of {was!r}"
            return f"{preferred}, which led by {margin:.1f} nats" if margin > MARGIN else ""
    return ""


def _margin(chosen: float, best: Any) -> float:
    """0 if the two best tokens share one text, and so one entry: such a place never counts."""
    second = sorted((float(value) for value in best.values()), reverse=True)[1:2]
    return chosen - (second[0] if second else chosen)
