"""The forecast of memory against what llama-server reported of tiny and of wide random models.

`tests/samples/llamacpp/buffers` has its lines, each file with the command line above them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from caovand.core.checkpoint.budget import Budget
from caovand.core.checkpoint.gguf import parse
from caovand.core.checkpoint.gguf_model import describe
from caovand.core.facts.inventory import ModelCard
from caovand.core.units import MIB
from caovand.engines.common.gguf.placement import Placement, devices
from caovand.engines.common.gguf.sizes import GgufLoad
from caovand.engines.llamacpp.log.phases import read
from tests import tiny_gguf

SAMPLES = Path(__file__).parents[2] / "samples" / "llamacpp" / "buffers"
WIDE: Mapping[str, Mapping[str, int]] = {
    "wide-llama": {"WIDTH": 2048, "INNER": 8192, "HEADS": 16, "KV_HEADS": 4, "HEAD": 128,
                   "VOCABULARY": 32000},
    "wide-gemma3": {"WIDTH": 1152, "INNER": 6912, "HEADS": 4, "KV_HEADS": 1, "HEAD": 256,
                    "VOCABULARY": 100000},
    "wide-qwen3moe": {"WIDTH": 2048, "INNER": 1536, "HEADS": 32, "KV_HEADS": 4, "HEAD": 128,
                      "VOCABULARY": 50000},
    "wide-qwen35": {"WIDTH": 1024, "INNER": 3584, "HEADS": 8, "KV_HEADS": 2, "HEAD": 256,
                    "VOCABULARY": 50000},
}  # fmt: skip
ROUNDED_MIB = 0.011
"""llama-server prints hundredths of a MiB, and some buffers are padded."""


def card(name: str, monkeypatch: pytest.MonkeyPatch) -> ModelCard:
    plain = name.removesuffix("-long").removesuffix("-shared")
    for constant, value in WIDE.get(plain, {}).items():
        monkeypatch.setattr(tiny_gguf, constant, value)
    head, size = tiny_gguf.header_of(plain.removeprefix("wide-"))
    return describe(
        [("a.gguf", parse(io.BytesIO(head).read, size, Budget(lambda: 0.0)))], "/a.gguf"
    )


def load(command: str) -> GgufLoad:
    words = command.split()

    def of(option: str, default: str) -> str:
        return words[words.index(option) + 1] if option in words else default

    slots, shared = int(of("-np", "1")), "--kv-unified" in words
    return GgufLoad(
        context=int(of("-c", "0")) // (1 if shared else slots),
        slots=slots,
        shared=shared,
        batch=int(of("-ub", "512")),
        keys=of("-ctk", "f16"),
        values=of("-ctv", "f16"),
        depth=int(of("--spec-draft-n-max", "0")),
        mtp="draft-mtp" in words,
    )


def reported(lines: list[str]) -> dict[str, float]:
    """The sums of the buffers by kind; the draft's compute buffer is printed again once resized."""
    sums: dict[str, list[float]] = {}
    for line in lines:
        for name, value in read(line)[1].items():
            kind = re.match(r"(weights|kv|states|compute|logits)_\w+_mib$", name)
            if kind and isinstance(value, float):
                sums.setdefault(kind[1], []).append(value)
    return {kind: sum(found[:2] if kind == "compute" else found) for kind, found in sums.items()}


@pytest.mark.parametrize("name", sorted(path.stem for path in SAMPLES.glob("*.log")))
def test_buffers_are_forecast_as_they_are_reported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, *lines = (SAMPLES / f"{name}.log").read_text().splitlines()
    (host,) = devices(card(name, monkeypatch), load(command), Placement())
    found = reported(lines)
    assert found["weights"] == pytest.approx(host.weights / MIB, rel=0.001, abs=ROUNDED_MIB)
    assert found.get("kv", 0) == pytest.approx(host.cache / MIB, rel=0.001, abs=ROUNDED_MIB)
    assert found.get("states", 0) == pytest.approx(host.states / MIB, rel=0.01, abs=ROUNDED_MIB)
    assert found["logits"] == pytest.approx(host.output / MIB, rel=0.02, abs=ROUNDED_MIB)
    if name in WIDE:
        assert found["compute"] == pytest.approx(host.compute / MIB, rel=0.06)
    else:  # of tiny ones the constant part is most
        assert found["compute"] <= host.compute / MIB + 1


def test_six_architectures_and_more_are_compared() -> None:
    assert {path.stem for path in SAMPLES.glob("*.log")} >= {*tiny_gguf.LAYERS, *WIDE}
