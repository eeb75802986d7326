"""Failures that the same text means in different phases of a start."""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.healing.failure import Failure
from caovand.engines.common.logs.signature import SERVED

LOADING: Mapping[str, Failure] = dict.fromkeys(
    ("resolve", "engine", "load", "drafter"), "device-oom-load"
)
OOM_BY_PHASE: Mapping[str, Failure] = {
    **LOADING,
    **dict.fromkeys(("profile", "compile", "kv", "capture", "warmup"), "device-oom-capture"),
}
DISK_BY_PHASE: Mapping[str, Failure] = {"compile": "compile-failed", "profile": "compile-failed"}
READING: Mapping[str, Failure] = dict.fromkeys(LOADING, "model-missing")
# Before the engine's process exists, and when it listens: the address is the listener's.
LISTENING: Mapping[str, Failure] = dict.fromkeys(("resolve", "http"), "bad-arguments")
# After suspend this is all that the driver says when a card is opened.
OPENING: Mapping[str, Failure] = dict.fromkeys(("resolve", "engine"), "gpu-absent")
SPLITTING: Mapping[str, Failure] = {
    **SERVED, **dict.fromkeys(("resolve", "engine", "load"), "bad-arguments"),
}  # fmt: skip
