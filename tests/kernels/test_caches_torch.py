"""What each type of KV cache does to attention and logits, held to the documented bounds."""

from __future__ import annotations

import pytest

torch = pytest.importorskip(
    "torch", reason="this Python has no torch: run these with the engine's Python"
)

from caovan_vllm_sm75_turbo3.measure import caches  # noqa: E402


@pytest.mark.parametrize(("dim", "keys"), [(128, 1024), (256, 2048)])
@pytest.mark.parametrize("kind", caches.KINDS)
def test_a_cache_moves_attention_by_no_more_than_is_documented(
    kind: str, dim: int, keys: int
) -> None:
    torch.manual_seed(0)
    found = caches.changes(kind, dim, keys)
    assert found.keys() == caches.BOUNDS.keys() == caches.TYPES.keys()
    for name, change in found.items():
        limit = caches.BOUNDS[name]
        error, top = (limit.output, limit.top) if kind == "normal" else (limit.worst, limit.least)
        assert change.output <= error, (name, change)
        assert change.top >= top, (name, change)
        assert change.divergence >= 0


def test_the_rotation_is_what_makes_four_bits_bear_outliers() -> None:
    torch.manual_seed(0)
    found = caches.changes("outlier channels", 128, 1024)
    assert found["int4 rotated"].output < found["int4"].output / 2
    assert found["int8 rotated"].output < found["int8"].output / 2


def test_logits_are_compared_by_their_order_and_their_distributions() -> None:
    want = torch.arange(40.0).repeat(2, 1).double()
    assert caches.compare(want, want) == (1, 1, 0)
    got = want.clone()
    got[0, 39] = -1.0  # one of the first 20, the first of all, is lost in one of two rows
    top, first, divergence = caches.compare(got, want)
    assert (top, first) == (39 / 40, 0.5)
    exact = (want[0].softmax(0) * (want[0].log_softmax(0) - got[0].log_softmax(0))).sum() / 2
    assert divergence == pytest.approx(exact.item())
