"""The tokenizer of the card tests' models, as vLLM's API server uses it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cards.vocabulary import write_vocabulary
from tests.real_engine import MODELS

COUNT = 600
DECODES = """
import json, sys
from tokenizers import Tokenizer, decoders
made = Tokenizer.from_file(sys.argv[1])
stream = decoders.DecodeStream(ids=list(range(int(sys.argv[2]))), skip_special_tokens=False)
texts = [stream.step(made, number) for number in range(int(sys.argv[2]))]
spoken = made.encode("Count to two: one,\\ntwo \\u4e8c")
print(json.dumps([texts, spoken.ids, made.decode(spoken.ids), made.get_vocab_size()]))
"""


@pytest.mark.engine
def test_every_id_gives_text_at_once_and_characters_stay_apart(
    engine: Path, tmp_path: Path
) -> None:
    source, made = MODELS / "hybrid/tokenizer.json", tmp_path / "tokenizer.json"
    write_vocabulary(source, made, COUNT)
    words = [str(engine), "-c", DECODES, str(made), str(COUNT)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    texts, ids, again, size = json.loads(done.stdout)
    assert size == COUNT
    assert len(set(texts)) == COUNT
    assert all(texts)
    assert again == "Count to two: one,\ntwo ?"
    assert len(ids) == len(again)
    for token in json.loads(source.read_text())["added_tokens"]:
        assert texts[token["id"]] == token["content"], "where the model's configuration has it"
