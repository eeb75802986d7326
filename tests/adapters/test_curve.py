"""The size and the end of a CURVE handshake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.adapters.admission.curve import MAX_BYTES, Encrypted, commands
from caovand.adapters.admission.zmtp import LimitExceeded

GREETING = b"\xff" + bytes(8) + b"\x7f\3\1" + b"CURVE".ljust(20, b"\0") + bytes(32)
WELCOME = b"\7WELCOME" + bytes(160)
READY = b"\5READY" + bytes(40)
ERROR = b"\5ERROR\3400"


def command(body: bytes, *, long: bool = False) -> bytes:
    size = len(body).to_bytes(8, "big") if long else bytes([len(body)])
    return (b"\6" if long else b"\4") + size + body


def follow(answer: bytes, cut: int) -> tuple[bool, int]:
    """Whether these bytes of a server end a handshake, and how often that was told."""
    told: list[None] = []
    one = Encrypted(1 << 20, lambda: told.append(None))
    for at in range(0, len(answer), cut):
        one.answered(answer[at : at + cut])
    return one.asks, len(told)


@given(st.integers(1, 400), st.booleans())
def test_ready_ends_it_however_the_bytes_are_cut(cut: int, long: bool) -> None:
    begin = GREETING + command(WELCOME, long=long)
    assert follow(begin + command(ERROR), cut) == (False, 0)
    assert follow(begin + command(READY, long=long) + bytes(5000), cut) == (True, 1)
    assert commands(begin + command(READY)) == [WELCOME, READY]


@given(st.binary(max_size=3000), st.integers(1, 400))
def test_no_other_bytes_end_it(answer: bytes, cut: int) -> None:
    ready = any(one.startswith(b"\5READY") for one in commands(answer[:MAX_BYTES]))
    assert follow(answer, cut)[0] is ready


def test_more_than_a_handshake_is_taken_from_nobody_before_its_end() -> None:
    one = Encrypted(1 << 20)
    one.feed(bytes(MAX_BYTES))
    with pytest.raises(LimitExceeded):
        one.feed(b"x")
    other = Encrypted(1 << 20)
    other.answered(GREETING + command(WELCOME) + command(READY))
    for _ in range(3):
        other.feed(bytes(1 << 20))
        other.heard()
    other.feed(bytes(1 << 20))
    with pytest.raises(LimitExceeded, match="a message is too large"):
        other.feed(b"x")


def test_a_client_follows_what_its_server_says() -> None:
    one = Encrypted(1 << 20, to_server=True)
    one.answered(GREETING + command(WELCOME) + command(READY))
    assert not one.asks
    one.feed(GREETING + command(WELCOME))
    # The first message may come with the end of the handshake.
    one.feed(command(READY) + bytes(60_000))
    assert one.asks
    other = Encrypted(1 << 20, to_server=True)
    with pytest.raises(LimitExceeded, match="a handshake is too large"):
        other.feed(GREETING + bytes(MAX_BYTES))
