"""Token counts from answers, limits of keys, and reports of their use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.gateway.keys import (
    MAX_KEYS,
    ClientKey,
    check_new_key,
    digest_of,
    from_document,
    to_document,
)
from caovand.core.gateway.usage import TAIL_BYTES, KeyUsage, Ledger, Meter, Quotas
from caovand.core.problem import ProblemError
from caovand.core.units import DAY_S

CHUNK = b'data: {"choices": [{"delta": {"content": "word"}}]}\n\n'
OPENAI = b'"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}'
ANTHROPIC = b'"usage": {"input_tokens": 7, "output_tokens": 2}}'


@pytest.mark.parametrize("usage", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize("pieces", [1, 7, TAIL_BYTES])
def test_an_answer_s_own_usage_counts_however_it_is_cut(usage: bytes, pieces: int) -> None:
    meter, answer = Meter(), CHUNK * 100 + usage
    for start in range(0, len(answer), pieces):
        meter.take(answer[start : start + pieces])
    assert meter.usage(999) == KeyUsage(7, 2, estimated=False)


def test_without_usage_events_or_bytes_count() -> None:
    stream, whole = Meter(), Meter()
    for _ in range(5):
        stream.take(CHUNK)
    whole.take(b"x" * 40)
    assert stream.usage(100) == KeyUsage(25, 5, estimated=True)
    assert whole.usage(0) == KeyUsage(0, 10, estimated=True)


def test_a_key_s_limits_end_by_themselves() -> None:
    quotas, key = Quotas(), ClientKey("a", "", rpm=2, tokens_per_day=100)
    noon = 20_000 * DAY_S + DAY_S / 2
    assert [quotas.admit(key, at, noon) for at in (0.0, 10.0)] == [None, None]
    spent = quotas.admit(key, 20.0, noon)
    assert spent
    assert spent.retry_after_s == 40
    assert quotas.admit(ClientKey("b", "", rpm=2), 20.0, noon) is None
    assert quotas.admit(key, 60.0, noon) is None
    quotas.spend("a", 99, noon)
    assert quotas.admit(key, 200.0, noon) is None
    quotas.spend("a", 1, noon)
    spent = quotas.admit(key, 300.0, noon)
    assert spent
    assert spent.retry_after_s == DAY_S / 2
    assert quotas.admit(key, 300.0, noon + DAY_S / 2) is None


def test_what_a_day_used_before_a_restart_still_counts() -> None:
    quotas, key = Quotas(), ClientKey("a", "", tokens_per_day=100)
    quotas.know(20_000, {"a": 100})
    assert quotas.admit(key, 0.0, 20_000 * DAY_S + 5) is not None
    quotas.know(19_999, {"a": 500})
    assert quotas.admit(key, 0.0, 20_001 * DAY_S) is None


rows = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from("abc"), *[st.integers(0, 99)] * 3), max_size=9
)


@given(rows, st.integers(1, 4))
def test_no_use_is_forgotten_or_counted_twice(used: list[Any], most: int) -> None:
    ledger, seen = Ledger(), Ledger()
    ledger.put_back(used)
    failed = False
    while taken := ledger.take(most):
        assert len(taken) <= most
        if failed := not failed:
            ledger.put_back(taken)  # a report that did not arrive
            taken = ledger.take(most)
        seen.put_back(taken)
    totals = [sum(row[2] for row in used), sum(row[4] for row in used)]
    found = seen.take(1000)
    assert [sum(row[2] for row in found), sum(row[4] for row in found)] == totals


def test_a_key_is_kept_without_its_secret() -> None:
    keys = (ClientKey("a", digest_of("s"), ("tiny",), 5, None, "background", 0.2, 9, "high"),)
    assert from_document(json.loads(json.dumps(to_document(keys)))) == keys
    for damaged in (None, 7, [7], [{}], [{"name": 7, "digest": "", "models": []}], "text"):
        assert from_document(damaged) is None


@pytest.mark.parametrize(
    "key",
    [
        ClientKey("", ""),
        ClientKey("a b", ""),
        ClientKey("a" * 65, ""),
        ClientKey("taken", ""),
        ClientKey("a", "", rpm=0),
        ClientKey("a", "", tokens_per_day=-1),
        ClientKey("a", "", models=("",)),
        ClientKey("a", "", band="vip"),
        ClientKey("a", "", temperature=-0.1),
        ClientKey("a", "", temperature=float("nan")),
        ClientKey("a", "", max_tokens=0),
        ClientKey("a", "", reasoning_effort="huge"),
        ClientKey("a", "", reasoning_effort=""),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(key: ClientKey) -> None:
    with pytest.raises(ProblemError):
        check_new_key(key, ["taken"])


def test_there_are_only_so_many_keys() -> None:
    with pytest.raises(ProblemError, match="revoke"):
        check_new_key(ClientKey("a", ""), [str(n) for n in range(MAX_KEYS)])
