"""Failure ids and findings. The ids are part of the public interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Failure = Literal[
    "device-oom-load", "kv-cache-none", "kv-cache-short", "vram-busy", "device-oom-capture",
    "device-oom-run", "sampler-oom", "illegal-access", "launch-failure", "collective-timeout",
    "gpu-lost", "gpu-absent", "engine-unusable", "host-oom", "shm-full", "compile-cache-stale",
    "shared-memory-limit", "jit-toolchain", "backend-unsupported", "bad-arguments",
    "model-missing", "network", "access-denied", "port-busy", "plugin-error", "compile-failed",
    "engine-died", "start-stall", "hang", "draft-collapse", "answers-changed", "answers-degenerate",
    "allreduce-wrong", "allreduce-hung", "node-missing", "node-unfit", "node-lost",
    "unknown",
]  # fmt: skip
FAILURES: tuple[Failure, ...] = get_args(Failure)
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_OWN_PHASES = frozenset({"plan", "ending"})
"""No engine runs in these phases, so the finding's text is caovan's own."""


@dataclass(frozen=True)
class Finding:
    """A failure with its evidence: the causing line, the values in it, and its phase.

    `phase` is a phase of the start, "serving" or "ending"; `captures` are numbers and names from
    the line, such as the context length that would fit. `signature` names the row that matched the
    line; `line` is the line's number in the searched log, from 1. Both are empty if no log line
    matched.
    """

    failure: Failure
    text: str
    phase: str = "serving"
    captures: Mapping[str, str] = field(default_factory=dict)
    signature: str = ""
    line: int = 0

    @property
    def silent(self) -> bool:
        """Whether nothing explains it: an engine that ended without output may have been killed."""
        return not self.signature or "silent" in self.captures

    @property
    def maybe_killed(self) -> bool:
        """Whether the engine ended without output, which is no evidence against its plan."""
        return self.failure == "engine-died" and self.silent

    @property
    def kind(self) -> str:
        """Failures of one kind count together; kills from outside are a separate kind."""
        return "killed" if self.maybe_killed else self.failure

    @property
    def beyond_card(self) -> bool:
        """Whether a single allocation exceeded the whole card, which no plan can satisfy."""
        requested, total = (_bytes(self.captures.get(name, "")) for name in ("wanted", "total"))
        return requested is not None and total is not None and requested > total

    @property
    def public_text(self) -> str:
        """The part that every user may read, without quotes from the engine's log or HTTP
        server.
        """
        ours = self.phase in _OWN_PHASES and not self.line
        return self.text if ours else f"{self.failure} in phase {self.phase}"


def _bytes(size: str) -> float | None:
    """Parse a size as torch prints it, "1.74 GiB" or "512 bytes"; None for anything else."""
    number, _, unit = size.partition(" ")
    try:
        return float(number) * 1024.0 ** _UNITS.index(unit)
    except ValueError:
        return None


@dataclass(frozen=True)
class Foreseen:
    """The failure in which a start is certain to end; with `hold`, waiting may help.

    The plan is tried anyway if [policy] pinned names `unless_pinned`.
    """

    finding: Finding
    hold: bool = False
    unless_pinned: str = ""
