"""The rungs that help against each failure of Ollama, best first."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.failure import Failure
from caovand.core.healing.rung import ANY, Healing
from caovand.engines.common.healing.rungs import BY_PERSON
from caovand.engines.ollama.healing.rungs import RUNGS

_CARD = ("cache", "parallel", "overhead", "context", "processor")
_CRASH = ("flash-off", "overhead", "processor")

CURES: Mapping[tuple[Failure, str], tuple[str, ...]] = {
    ("device-oom-load", ANY): ("overhead", "cache", "parallel", "context", "processor"),
    ("kv-cache-none", ANY): _CARD,
    ("kv-cache-short", ANY): _CARD,
    ("vram-busy", ANY): ("overhead", "context"),
    ("device-oom-capture", ANY): ("overhead", "context"),
    ("device-oom-run", ANY): ("overhead", "context", "parallel"),
    ("host-oom", ANY): ("cache", "parallel", "context"),
    ("illegal-access", ANY): _CRASH,
    ("launch-failure", ANY): _CRASH,
    ("backend-unsupported", ANY): ("flash-off", "processor"),
    ("engine-died", ANY): _CRASH,
    ("start-stall", ANY): ("flash-off",),
    ("hang", ANY): ("flash-off", "parallel"),
    ("unknown", ANY): ("flash-off",),
}
"""A failure without a row here has no rungs: only waiting, or a person, helps."""

PRECISE: Mapping[str, tuple[str, ...]] = {
    **BY_PERSON,
    "exit.instruction": (),
    "ollama.instruction": (),
    "ollama.slow": (),
    "ollama.client.gone": (),
    "ggml.split": (),
    "ggml.attention": ("flash-off", "processor"),
    "llama.metal": (),
    "ollama.mlx": (),
    "driver.old": ("processor",),
    "driver.ptx": ("processor",),
}
"""Rows more specific than their failure: only these rungs apply, none if a person must act."""

HEALING = Healing(
    rungs=RUNGS,
    cures=CURES,
    precise=PRECISE,
    option=lambda name: f"[engine] env {name}",
    kinds={"max_model_len": (int,), "host": (str,), "port": (int,), "served_model_name": (str,)},
)
