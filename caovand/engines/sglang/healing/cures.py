"""The rungs that help against each failure of SGLang, best first."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.failure import Failure
from caovand.core.healing.rung import ANY, Healing
from caovand.engines.common.healing.rungs import BY_PERSON
from caovand.engines.sglang.healing.rungs import RUNGS
from caovand.engines.sglang.options import DRAFTING, TYPES, option

_STEP = ("share", "requests", "step", "draft-off", "graphs-off")
_CRASH = ("draft-off", "graphs-off", "attention")

CURES: Mapping[tuple[Failure, str], tuple[str, ...]] = {
    ("device-oom-load", ANY): ("draft-off", "share"),
    ("kv-cache-none", ANY): ("draft-off", "fill"),
    ("kv-cache-short", ANY): ("requests", "cache", "context"),
    ("vram-busy", ANY): ("share", "context"),
    ("device-oom-capture", ANY): ("share", "requests", "graphs-off"),
    ("device-oom-run", ANY): _STEP,
    ("host-oom", ANY): ("replicas-off", "requests"),
    ("illegal-access", ANY): _CRASH,
    ("launch-failure", ANY): _CRASH,
    ("shared-memory-limit", ANY): ("attention", "draft-off"),
    ("jit-toolchain", ANY): ("attention",),
    ("backend-unsupported", ANY): ("attention", "draft-off", "graphs-off"),
    ("compile-failed", ANY): ("graphs-off",),
    ("engine-died", ANY): (*_CRASH, "replicas-off"),
    ("start-stall", ANY): ("replicas-off", "draft-off", "graphs-off"),
    ("hang", ANY): ("draft-off", "replicas-off", "graphs-off", "requests"),
    ("unknown", ANY): ("replicas-off", "draft-off", "graphs-off"),
}
"""A failure without a row here has no rungs: only waiting, or a person, helps."""

PRECISE: Mapping[str, tuple[str, ...]] = {
    **BY_PERSON,
    "weights.fp8": (),
    "cache.fp8": ("attention",),
    "flashinfer.card": ("attention",),
    "kernels.package": (),
    "kernels.attention": ("attention",),
    "kernels.flashinfer": ("attention",),
    "flashinfer.workspace": ("step", "attention"),
    "sglang.arch": (),
    "sglang.smem": ("draft-off",),
    "sglang.cc": (),
    "sglang.old": (),
    "jit.python": (),
    "jit.cuda": (),
    "torch.card": (),
    "jit.assembler": (),
    "jit.listed": (),
    "start.itself": (),
}
"""Rows more specific than their failure: only these rungs apply, none if a person must act."""

HEALING = Healing(
    rungs=RUNGS,
    cures=CURES,
    precise=PRECISE,
    option=option,
    mode_rungs=frozenset({"draft-off"}),
    mode_settings=(DRAFTING,),
    kinds={**{name: (kind,) for name, kind in TYPES.items()}, DRAFTING: (dict,)},
)
