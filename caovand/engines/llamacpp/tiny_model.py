"""A tiny Llama in the GGUF format, for a quick trial of a server.

Its layers add nothing: the next token depends only on the last one (`core.tiny_chat`).

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from caovand.core import tiny_chat

LAYERS, WIDTH, FEED, HEADS, CONTEXT = 1, 64, 64, 2, 2048
ALIGNMENT = 32
CONTROLS = (b"<unk>", b"<s>", b"</s>", tiny_chat.START.encode(), tiny_chat.END.encode())
BYTES = tuple(f"<0x{byte:02X}>".encode() for byte in range(256))
# U+2581 is a space in a piece of SentencePiece's.
WORDS = (*CONTROLS, *BYTES, *(piece.replace(" ", "\u2581").encode() for piece in tiny_chat.PIECES))
FIRST, END = len(CONTROLS) + len(BYTES), CONTROLS.index(tiny_chat.END.encode())
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_KINDS = (_UNKNOWN, *[_CONTROL] * (len(CONTROLS) - 1), *[_BYTE] * len(BYTES))
_KINDS += (_NORMAL,) * len(tiny_chat.PIECES)


def tiny_model() -> bytes:
    """The whole file; the same bytes every time."""
    facts = [
        _fact(b"general.architecture", _STRING, _string(b"llama")),
        _fact(b"general.name", _STRING, _string(b"tiny")),
        _number(b"llama.context_length", CONTEXT),
        _number(b"llama.embedding_length", WIDTH),
        _number(b"llama.block_count", LAYERS),
        _number(b"llama.feed_forward_length", FEED),
        _number(b"llama.attention.head_count", HEADS),
        _number(b"llama.attention.head_count_kv", HEADS),
        _fact(b"llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5)),
        _number(b"llama.rope.dimension_count", WIDTH // HEADS),
        _number(b"llama.vocab_size", len(WORDS)),
        _fact(b"tokenizer.ggml.model", _STRING, _string(b"llama")),
        _list(b"tokenizer.ggml.tokens", _STRING, [_string(word) for word in WORDS]),
        _list(b"tokenizer.ggml.scores", _FLOAT32, [bytes(4)] * len(WORDS)),
        _list(b"tokenizer.ggml.token_type", _INT32, [struct.pack("<i", one) for one in _KINDS]),
        _number(b"tokenizer.ggml.bos_token_id", 1),
        _number(b"tokenizer.ggml.eos_token_id", END),
        _number(b"tokenizer.ggml.unknown_token_id", 0),
        _fact(b"tokenizer.chat_template", _STRING, _string(tiny_chat.TEMPLATE.encode())),
    ]
    noise, tensors, data = _noise(), [], bytearray()
    for name, shape in _tensors():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        if name in _LOOKUP:
            values = _LOOKUP[name]()
        elif name.endswith(_SILENT):
            values = [0.0] * count
        else:
            norm = len(shape) == 1
            values = [1.0] * count if norm else [next(noise) for _ in range(count)]
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        tensors.append(_string(name) + sizes + struct.pack("<IQ", 0, len(data)))
        data += struct.pack(f"<{count}f", *values)
        data += bytes(-len(data) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts))
    head += b"".join(facts) + b"".join(tensors)
    return head + bytes(-len(head) % ALIGNMENT) + bytes(data)


def _tensors() -> Iterator[tuple[bytes, tuple[int, ...]]]:
    """Names and shapes; the fastest-varying dimension first."""
    yield b"token_embd.weight", (WIDTH, len(WORDS))
    yield b"output_norm.weight", (WIDTH,)
    yield b"output.weight", (WIDTH, len(WORDS))
    for layer in range(LAYERS):
        block = f"blk.{layer}.".encode()
        for norm in (b"attn_norm", b"ffn_norm"):
            yield block + norm + b".weight", (WIDTH,)
        for part in (b"attn_q", b"attn_k", b"attn_v", b"attn_output"):
            yield block + part + b".weight", (WIDTH, WIDTH)
        for part in (b"ffn_gate", b"ffn_up"):
            yield block + part + b".weight", (WIDTH, FEED)
        yield block + b"ffn_down.weight", (FEED, WIDTH)


def _embedding() -> list[float]:
    """A direction for each piece of the text, and one, the first, for all other tokens."""
    return _rows({FIRST + n: n + 1 for n in range(len(tiny_chat.PIECES))}, others=0)


def _head() -> list[float]:
    """The next piece for each direction, and the end after the last one."""
    followers = (*range(FIRST, len(WORDS)), END)
    return _rows({follower: n for n, follower in enumerate(followers)})


def _rows(directions: dict[int, int], others: int | None = None) -> list[float]:
    """One row per token, with a single number that is not 0; the direction `others` if the token
    has none."""
    values = [0.0] * (WIDTH * len(WORDS))
    for token in range(len(WORDS)):
        if (direction := directions.get(token, others)) is not None:
            values[token * WIDTH + direction] = 8.0
    return values


_LOOKUP = {b"token_embd.weight": _embedding, b"output.weight": _head}
_SILENT = (b"attn_output.weight", b"ffn_down.weight")


def _noise() -> Iterator[float]:
    """Numbers from -0.1 to 0.1 by a linear congruential generator."""
    state = 1
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield (state >> 32) / 2**32 * 0.2 - 0.1


def _string(string: bytes) -> bytes:
    return struct.pack("<Q", len(string)) + string


def _fact(key: bytes, kind: int, value: bytes) -> bytes:
    return _string(key) + struct.pack("<I", kind) + value


def _number(key: bytes, value: int) -> bytes:
    return _fact(key, _UINT32, struct.pack("<I", value))


def _list(key: bytes, kind: int, values: Sequence[bytes]) -> bytes:
    return _fact(key, _ARRAY, struct.pack("<IQ", kind, len(values)) + b"".join(values))
