"""The int8 lm_head in PyTorch on the CPU: its rounding, and the effect on logits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip(
    "torch", reason="this Python has no torch: run these with the engine's Python"
)

from caovan_vllm_sm75_turbo3 import lm_head  # noqa: E402
from caovan_vllm_sm75_turbo3.measure import heads  # noqa: E402


def test_a_weight_is_half_a_step_off_at_most_and_a_rows_largest_is_127_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(70, 128) * torch.logspace(-6, 2, 70)[:, None]).half()
    weight[5] = 0
    whole = lm_head.quantise(weight)
    monkeypatch.setattr(lm_head, "CHUNK_BYTES", 4 * 128 * 16)
    rows, scale = lm_head.quantise(weight)
    assert torch.equal(rows, whole[0])
    assert torch.equal(scale, whole[1])
    assert rows.dtype is torch.int8
    assert rows.abs().amax(1).tolist() == [0 if i == 5 else 127 for i in range(70)]
    error = (heads.dequantised(rows, scale) - weight.double()).abs()
    assert (error <= scale[:, None].double() * 0.50002).all()


def test_a_row_that_is_not_finite_is_refused() -> None:
    weight = torch.zeros(9, 64).half()
    weight[7, 3] = torch.inf
    with pytest.raises(ValueError, match="cannot quantise row 7"):
        lm_head.quantise(weight)


def test_tensors_that_the_kernel_cannot_read_are_refused() -> None:
    x, weight, scale = torch.zeros(2, 64).half(), torch.zeros(64, 64).char(), torch.zeros(64)
    out = torch.zeros(2, 64).half()
    for wrong in ((x.float(), weight, scale, out), (x, weight, scale[1:], out),
                  (x, weight.T, scale, out), (x, weight, scale, out[:1])):  # fmt: skip
        with pytest.raises(ValueError, match=r"cannot use .*: the kernel expects"):
            lm_head.logits(*wrong)


def test_many_rows_go_to_the_kernel_in_parts_and_more_to_float16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(65, 64).half(), torch.randn(200, 64).half()
    rows, scale = lm_head.quantise(weight)
    exact = x.double() @ heads.dequantised(rows, scale).T
    parts: list[int] = []

    def kernel(x: torch.Tensor, rows: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> None:
        parts.append(x.shape[0])
        out.copy_(x.double() @ heads.dequantised(rows, scale).T)

    monkeypatch.setattr(lm_head, "logits", kernel)
    monkeypatch.setattr(lm_head, "SCRATCH_BYTES", 64 * 2 * 64)
    for count, launched in ((1, [1]), (16, [16]), (33, [16, 16, 1]), (64, [16] * 4), (65, [])):
        parts.clear()
        got = lm_head.project(x[:count], rows, scale)
        assert parts == launched
        assert (got.double() - exact[:count]).abs().max() < 2e-3 * exact.std() * 8
    assert lm_head.project(x[:0], rows, scale).shape == (0, 200)


@pytest.mark.parametrize("kind", heads.BOUNDS)
def test_logits_move_by_no_more_than_is_documented(kind: str) -> None:
    torch.manual_seed(0)
    x, weight = heads.structured(kind, rows=4, vocabulary=2000, hidden=512)
    moved = heads.movement(x, weight, *lm_head.quantise(weight))
    assert moved.relative <= heads.BOUNDS[kind][0], moved
    assert moved.largest <= heads.BOUNDS[kind][1], moved
    assert moved.first == 1 or moved.lead <= 2 * moved.largest


def test_a_row_loses_its_first_token_only_where_the_second_is_near() -> None:
    torch.manual_seed(0)
    x, weight = heads.structured("outlier weights", rows=200, vocabulary=500, hidden=512)
    moved = heads.movement(x, weight, *lm_head.quantise(weight))
    assert 0.8 < moved.first < 1
    assert 0 < moved.lead <= 2 * moved.largest
