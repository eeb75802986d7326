"""The rungs that help against each failure of llama.cpp, best first, by phase where that
matters."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.failure import Failure
from caovand.core.healing.rung import ANY, Healing
from caovand.engines.common.healing.rungs import BY_PERSON
from caovand.engines.llamacpp.healing.rungs import RUNGS
from caovand.engines.llamacpp.planning.options import TYPES, option

_CARD = ("cache", "slots", "draft-off", "context", "layers")
_STEP = ("batch", "layers", "context")
_CRASH = ("draft-off", "flash-auto", "cache-plain", "mmap-off", "layers")

CURES: Mapping[tuple[Failure, str], tuple[str, ...]] = {
    ("device-oom-load", ANY): ("layers", *_CARD[:-1]),
    ("kv-cache-none", ANY): _CARD,
    ("kv-cache-short", ANY): _CARD,
    ("vram-busy", ANY): ("layers", "context"),
    ("device-oom-capture", ANY): _STEP,
    ("device-oom-run", ANY): _STEP,
    ("host-oom", ANY): ("prompts-off", "cache", "slots", "context", "batch", "draft-off"),
    ("illegal-access", ANY): _CRASH,
    ("launch-failure", ANY): _CRASH,
    ("backend-unsupported", ANY): ("draft-off", "cache-plain", "flash-auto"),
    ("engine-died", ANY): _CRASH,
    ("start-stall", ANY): ("draft-off", "flash-auto"),
    ("start-stall", "load"): ("mmap-off",),
    ("hang", ANY): ("batch", "draft-off", "flash-auto"),
    ("draft-collapse", ANY): ("draft-off",),
    ("unknown", ANY): ("draft-off", "flash-auto", "mmap-off"),
}  # fmt: skip
"""A failure without a row here has no rungs: only waiting, or a person, helps."""

PRECISE: Mapping[str, tuple[str, ...]] = {
    **BY_PERSON,
    "exit.instruction": (),
    "llama.cache.long": ("context", "cache", "slots"),
    "llama.ram.cache": ("context", "cache", "slots"),
    "llama.cache.unplaced": ("context", "cache", "slots"),
    "llama.cuda.peer": (),
    "ggml.split": (),
    "ggml.attention": ("cache-plain", "flash-auto"),
    "weights.fp8": (),
    "cache.fp8": (),
    "llama.metal": (),
}
"""Rows more specific than their failure: only these rungs apply, none if a person must act."""

HEALING = Healing(
    rungs=RUNGS,
    cures=CURES,
    precise=PRECISE,
    option=lambda name: "--spec-type" if name == "speculative_config" else option(name),
    mode_rungs=frozenset({"draft-off"}),
    mode_settings=("speculative_config",),
    kinds={**{name: (kind,) for name, kind in TYPES.items()}, "speculative_config": (dict,)},
)
