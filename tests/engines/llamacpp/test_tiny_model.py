"""The model that proves an installation and that `make run` serves: its answer is its sentence."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from caovand.core import tiny_chat
from caovand.engines.llamacpp import tiny_model


def tensor(data: bytes, name: bytes) -> list[list[float]]:
    """The rows of a tensor of two dimensions, read from the file."""
    at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    _, width, rows, _, offset = struct.unpack_from("<IQQIQ", data, at)
    values = struct.unpack_from(f"<{width * rows}f", data, _start(data) + offset)
    return [list(values[row * width : (row + 1) * width]) for row in range(rows)]


def _start(data: bytes) -> int:
    """Where the tensors' data begins: what follows the last description, aligned."""
    last = b"blk.0.ffn_down.weight"
    end = data.index(last) + len(last) + struct.calcsize("<IQQIQ")
    return end + -end % tiny_model.ALIGNMENT


def greedy(data: bytes, token: int) -> Iterator[int]:
    """What follows a token; the layers add nothing, and the norm keeps the direction."""
    embedding, head = (tensor(data, name) for name in (b"token_embd.weight", b"output.weight"))
    while token != tiny_model.END:
        state = embedding[token]
        scores = [sum(a * b for a, b in zip(row, state, strict=True)) for row in head]
        token = max(range(len(scores)), key=scores.__getitem__)
        yield token


def test_the_greedy_answer_is_the_sentence_and_its_end() -> None:
    data = tiny_model.tiny_model()
    line_end = tiny_model.WORDS.index(b"<0x0A>")  # of "assistant\n", the template's last
    *pieces, end = greedy(data, line_end)
    answer = b"".join(tiny_model.WORDS[piece] for piece in pieces).decode()
    assert (answer.replace("\u2581", " "), end) == (tiny_chat.TEXT, tiny_model.END)


def test_no_piece_of_the_sentence_occurs_twice() -> None:
    assert "".join(tiny_chat.PIECES) == tiny_chat.TEXT
    assert len(set(tiny_chat.PIECES)) == len(tiny_chat.PIECES)
