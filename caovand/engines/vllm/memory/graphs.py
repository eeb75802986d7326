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
FIRST_MIB, FIRST_EXPERTS_MIB, TOKEN_MIB, LAYER_MIB, EXPERTS_MIB = 30, 60, 0.2, 0.155, 0.14
"""What capturing takes at all, without and with experts, a token of the largest graph, a layer of
one graph, and its experts: fitted to measured starts.

Experts are several kernels more a layer, but where they are mxfp4, which one kernel computes.
"""
MAMBA_MIB, SECOND_MAMBA_MIB = 0.1, 0.04
"""A layer of a graph where most are Mamba-2 and all have experts, and of a second piecewise one:
one start of Granite 4 H with 86 graphs of 40 layers took 502 MiB. Without experts it is not known.
"""
DRAFTER_MIB = 12
"""What capturing the drafting layers takes: 0 to 28 in three starts."""
SECOND_MIB, SECOND_FULL_MIB = 0.125, 0.04
"""What a layer of a second piecewise graph and of a second full one take."""


def compiles(config: Mapping[str, Any], level: Any = None) -> bool:
    """Whether vLLM compiles the model at all with this --compilation-config and -O level."""
    return _compiled(config, level) not in ("0", "NONE")


def mode(config: Mapping[str, Any], level: Any = None) -> str:
    """The kind of graphs that vLLM captures with this --compilation-config and -O level."""
    usual = {"0": "NONE", "1": "PIECEWISE"}.get(str(level), "FULL_AND_PIECEWISE")
    found = str(config.get("cudagraph_mode") or usual).upper()
    whole = _compiled(config, level) in (str(COMPILED), "VLLM_COMPILE")
    return found if whole or not found.endswith("PIECEWISE") else "NONE"


def _compiled(config: Mapping[str, Any], level: Any) -> str:
    given = config.get("mode")
    if given is None:
        given = 0 if str(level) == "0" else COMPILED
    return str(given).upper()


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


def kinds(mode: str, captured: tuple[int, ...], sequences: int, mtp: int) -> tuple[int, int]:
    """Piecewise and full graphs: mixed steps at every size, decoding up to all sequences."""
    every = len(captured)
    decoding = sum(size <= sequences * (1 + mtp) for size in captured)
    found = {
        "NONE": (0, 0),
        "PIECEWISE": (every, 0),
        "FULL": (0, every),
        "FULL_DECODE_ONLY": (0, decoding),
    }
    return found.get(mode.upper(), (every, decoding))


def count(mode: str, captured: tuple[int, ...], sequences: int, mtp: int) -> int:
    """Graphs in all."""
    return sum(kinds(mode, captured, sequences, mtp))


def graphs_mib(
    graphs: int, layers: int, experts: bool = False, largest: int = 0, *, mamba: bool = False
) -> float:
    """What so many graphs of a model of so many layers, each with experts or not, take.

    `largest` is the tokens of the largest; the smaller ones share its buffers. `mamba` layers are
    Mamba-2's.
    """
    each = LAYER_MIB + (EXPERTS_MIB if experts else 0)
    each = MAMBA_MIB if mamba and experts else each
    return _first_mib(experts, largest) + graphs * layers * each if graphs else 0.0


def expected_mib(
    piecewise: int,
    full: int,
    layers: int,
    experts: bool = False,
    largest: int = 0,
    *,
    mamba: bool = False,
) -> float:
    """What vLLM expects of so many graphs, and takes off before it sizes the cache.

    It captures two of each kind and multiplies what the second took, which is less than the mean.
    """
    if not piecewise + full:
        return 0.0
    second = SECOND_MIB + (EXPERTS_MIB if experts else 0)
    each = layers * (SECOND_MAMBA_MIB if mamba and experts else second)
    whole = max(layers * SECOND_FULL_MIB, 1)
    return _first_mib(experts, largest) + piecewise * each + full * whole


def _first_mib(experts: bool, largest: int) -> float:
    return FIRST_MIB + (FIRST_EXPERTS_MIB if experts else 0) + largest * TOKEN_MIB
