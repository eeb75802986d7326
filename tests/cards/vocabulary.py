"""A tokenizer that has a text of its own for every id, characters first.

vLLM's API server decodes a request's whole prompt again at each token that gives no text: half of a
character, or an id that the tokenizer lacks. Random weights choose such tokens all the time, and
behind 131,072 tokens each costs some 40 ms, more than the step that is to be measured.
"""

from __future__ import annotations

import itertools
import json
import string
from pathlib import Path

CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n"
UNKNOWN = "?"
"""What other characters become."""


def write_vocabulary(source: Path, target: Path, count: int) -> None:
    """Write a tokenizer.json with ids below `count`; the one of `source` gives special tokens."""
    made = json.loads(source.read_text())
    special = {token["id"]: token["content"] for token in made["added_tokens"]}
    runs = (itertools.product(CHARACTERS, repeat=length) for length in itertools.count(1))
    texts = special | dict(
        zip(
            (number for number in range(count) if number not in special),
            map("".join, itertools.chain.from_iterable(runs)),
            strict=False,
        )
    )
    made |= {
        "pre_tokenizer": {
            "type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated",
            "invert": False,
        },
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel", "vocab": {text: number for number, text in texts.items()},
            "unk_token": UNKNOWN,
        },
    }  # fmt: skip
    target.write_text(json.dumps(made))
