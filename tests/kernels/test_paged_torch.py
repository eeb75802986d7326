"""Paged caches in PyTorch on the CPU: the location of rows, and the meaning of their bytes."""

import pytest

torch = pytest.importorskip(
    "torch", reason="this Python has no torch: run these with the engine's Python"
)

from caovan_vllm_sm75_turbo3 import launch, library  # noqa: E402
from caovan_vllm_sm75_turbo3.measure import paged  # noqa: E402


@pytest.mark.parametrize(
    ("kind", "format_", "row", "record"),
    [
        ("fp16", library.KV_HALF, 512, 1024),
        ("fp8", library.KV_FP8, 256, 512),
        ("int8", library.KV_INT8, 256, 520),
        ("int4", library.KV_INT4, 128, 264),
    ],
)
def test_rows_are_where_vllm_has_them(kind: str, format_: int, row: int, record: int) -> None:
    raw = torch.zeros(3, 16, 4, paged.content(kind, 256), dtype=paged.DTYPES[kind])
    scales = launch.Scales(torch.ones(()), torch.ones(1))
    layout = launch.cache_layout(raw.transpose(1, 2), 256, torch.ones(256), scales)
    assert layout.format == format_
    assert (layout.head_stride, layout.token_stride) == (record, 4 * record)
    assert layout.block_stride == 64 * record
    assert (layout.k, layout.v) == (raw.data_ptr(), raw.data_ptr() + record // 2)
    if kind == "fp8":
        assert (layout.k_scale, layout.v_scale) == (scales.k.data_ptr(), scales.v.data_ptr())
    else:
        assert (layout.k_scale - layout.k, layout.v_scale - layout.v) == (row, row)


def test_a_cache_of_another_content_or_type_is_refused() -> None:
    with pytest.raises(ValueError, match="has 264 bytes"):
        launch.cache_layout(torch.zeros(1, 4, 16, 256, dtype=torch.uint8), 256, torch.ones(256))
    with pytest.raises(ValueError, match="float16, int8, uint8, float8_e4m3fn"):
        launch.cache_layout(torch.zeros(1, 4, 16, 512), 256, None)
    with pytest.raises(ValueError, match="without the signs"):
        launch.cache_layout(torch.zeros(1, 4, 16, 264, dtype=torch.uint8), 256, None)
    fp8 = torch.zeros(1, 4, 16, 512, dtype=torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="without the scales"):
        launch.cache_layout(fp8, 256, None)
    for wrong in (torch.ones(2), torch.ones(1).half()):
        with pytest.raises(ValueError, match="the kernel takes one float32"):
            launch.cache_layout(fp8, 256, None, launch.Scales(torch.ones(1), wrong))


@pytest.mark.parametrize(
    ("kind", "error"), [("fp16", 3e-4), ("fp8", 0.03), ("int8", 0.01), ("int4", 0.12)]
)
def test_what_is_written_reads_back_within_its_bits(kind: str, error: float) -> None:
    torch.manual_seed(0)
    x, signs = torch.randn(64, 2, 256), torch.randint(0, 2, (256,)) * 2.0 - 1
    back = paged.read(kind, paged.write(kind, x, signs), signs)
    assert ((back - x).norm() / x.norm()).item() < error
