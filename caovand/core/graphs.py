"""CUDA graphs: how many vLLM captures, and what they take (vllm/config/vllm.py).

One graph is captured for each size of a step, up to twice the tokens that all sequences decode at
once. A piecewise graph is cut at every attention layer, a full one is whole; either way what it
takes is a driver's record of every kernel, so that it grows with sizes times layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LARGEST, LARGEST_OF_GPT_OSS = 512, 1024
COMPILED = 3
"""vLLM's compilation mode that cuts the model in pieces, which is its default."""
FIRST_MIB, LAYER_MIB, EXPERTS_MIB = 30, 0.24, 0.125
"""What capturing takes at all, one graph a layer, and its experts: fitted to four measured starts.

Experts are several kernels more a layer, but where they are mxfp4, which one kernel computes.
"""


def mode(config: Mapping[str, Any], level: Any = None) -> str:
    """The kind of graphs that vLLM captures with this --compilation-config and -O level."""
    usual = {"0": "NONE", "1": "PIECEWISE"}.get(str(level), "FULL_AND_PIECEWISE")
    found = str(config.get("cudagraph_mode") or usual).upper()
    compiled = config.get("mode")
    if compiled is None:
        compiled = 0 if str(level) == "0" else COMPILED
    whole = str(compiled).upper() in (str(COMPILED), "VLLM_COMPILE")
    return found if whole or not found.endswith("PIECEWISE") else "NONE"


def sizes(
    sequences: int, mtp: int, batch_tokens: int, config: Mapping[str, Any], model_type: str = ""
) -> tuple[int, ...]:
    """Tokens of the steps that are captured; `config` is --compilation-config."""
    width = 1 + mtp
    listed, largest = (
        config.get("cudagraph_capture_sizes"),
        config.get("max_cudagraph_capture_size"),
    )
    if isinstance(listed, (list, tuple)):
        wanted = [size for size in listed if isinstance(size, int)]
    else:
        if not isinstance(largest, int):
            own = model_type == "gpt_oss"
            largest = min(sequences * width * 2, LARGEST)
            largest = LARGEST_OF_GPT_OSS if own else largest
        wanted = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
        wanted = [size for size in wanted if size <= largest]
    # Drafting makes every request 1 + MTP tokens long: sizes are rounded up to that.
    rounded = {-(-size // width) * width for size in wanted if size > 0}
    return tuple(sorted(size for size in rounded if size <= batch_tokens))


def count(mode: str, captured: tuple[int, ...], sequences: int, mtp: int) -> int:
    """Graphs in all: mixed steps are captured at every size, decoding up to all sequences."""
    decoding = sum(size <= sequences * (1 + mtp) for size in captured)
    counts = {
        "NONE": 0,
        "PIECEWISE": len(captured),
        "FULL": len(captured),
        "FULL_DECODE_ONLY": decoding,
    }
    return counts.get(mode.upper(), len(captured) + decoding)


def graphs_mib(graphs: int, layers: int, experts: bool = False) -> float:
    """What so many graphs of a model of so many layers, each with experts or not, take."""
    each = LAYER_MIB + (EXPERTS_MIB if experts else 0)
    return FIRST_MIB + graphs * layers * each if graphs else 0.0
