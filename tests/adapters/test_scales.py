"""Negative scales in weight data are found with little memory, and only once."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path

import pytest

from caovand.adapters.engine import scales
from caovand.core.checkpoint.safetensors import BadShard

NAME = "model.layers.0.mlp.up_proj.scales"
SIZES = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8, "I8": 1}


def write(path: Path, tensors: dict[str, tuple[str, bytes]]) -> Path:
    """A shard with these tensors: type and data of each."""
    header, at = {}, 0
    for name, (dtype, data) in tensors.items():
        shape = [len(data) // SIZES[dtype]]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    whole = struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values())
    path.write_bytes(whole)
    return path


def floats(dtype: str, *values: float) -> bytes:
    if dtype == "BF16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{ {'F16': 'e', 'F32': 'f', 'F64': 'd'}[dtype] }", *values)


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32", "F64"])
@pytest.mark.parametrize(
    ("values", "negative"),
    [
        ((0.5, 0.25), False),
        ((), False),
        ((0.5, -0.25), True),
        ((-0.0, 0.5), False),
        ((-0.0, 1e-7, -1e-7), True),
        ((float("inf"), 65504.0), False),
    ],
)
def test_a_negative_scale_is_found_in_every_type(
    tmp_path: Path, dtype: str, values: tuple[float, ...], negative: bool
) -> None:
    tensors = {"model.norm.weight": (dtype, floats(dtype, -1.0)), NAME: (dtype, b"")}
    tensors[NAME] = dtype, floats(dtype, *values)
    found = scales.find_negative(write(tmp_path / "a.safetensors", tensors))
    assert found == (NAME if negative else "")


@pytest.mark.parametrize("place", [0, 1 << 19, (1 << 20) + 1, (1 << 21) - 1])
def test_it_is_found_anywhere_in_bounded_memory(tmp_path: Path, place: int) -> None:
    data = bytearray(1 << 22)
    data[2 * place + 1] = 0xBC
    shard = write(tmp_path / "a.safetensors", {NAME: ("F16", bytes(data))})
    del data
    tracemalloc.start()
    assert scales.find_negative(shard) == NAME
    assert tracemalloc.get_traced_memory()[1] < 3 << 20
    tracemalloc.stop()


def test_a_file_is_read_again_only_once_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = {NAME: ("F16", floats("F16", 1.0))}, {NAME: ("F16", floats("F16", -1.0, 1.0))}
    shard = write(tmp_path / "a.safetensors", good)
    assert scales.find_negative(shard) == ""
    with monkeypatch.context() as patch:
        patch.setattr(scales, "_is_negative", lambda *_: pytest.fail("read again"))
        assert scales.find_negative(shard) == ""
    assert scales.find_negative(write(shard, bad)) == NAME


def test_scales_that_are_no_floats_are_refused(tmp_path: Path) -> None:
    shard = write(tmp_path / "a.safetensors", {NAME: ("I8", b"\x01\x02")})
    with pytest.raises(BadShard, match=r"its scales .* are of type I8, not floats"):
        scales.find_negative(shard)
