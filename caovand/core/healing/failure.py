"""The failures of an engine, and a finding of one. Their ids are part of the interface."""

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
# In these phases no engine runs, so the finding's words are caovand's own.
_OWN_PHASES = frozenset({"plan", "ending"})


@dataclass(frozen=True)
class Finding:
    """A failure with its evidence: the causing line, the values read from it, its phase.

    `phase` is the startup phase, "serving" or "ending"; `captures` are numbers and names read from
    the line, such as the context length that would fit. `signature` names the row that matched the
    line, `line` is its number, from 1, in the searched log; both are empty without a log line.
    """

    failure: Failure
    text: str
    phase: str = "serving"
    captures: Mapping[str, str] = field(default_factory=dict)
    signature: str = ""
    line: int = 0

    @property
    def silent(self) -> bool:
        """Whether nothing explains it: an engine that ended without a word may have been killed."""
        return not self.signature or "silent" in self.captures

    @property
    def maybe_killed(self) -> bool:
        """Whether the engine ended without a word, which is no evidence against its plan."""
        return self.failure == "engine-died" and self.silent

    @property
    def kind(self) -> str:
        """Failures of one kind count together: a kill from outside makes no other more likely."""
        return "killed" if self.maybe_killed else self.failure

    @property
    def beyond_card(self) -> bool:
        """Whether one allocation exceeded the whole card, which no plan makes room for."""
        wanted, total = (_bytes(self.captures.get(name, "")) for name in ("wanted", "total"))
        return wanted is not None and total is not None and wanted > total

    @property
    def public_text(self) -> str:
        """The part anyone may read: nothing quoted from the engine's log or HTTP server."""
        own = self.phase in _OWN_PHASES and not self.line
        return self.text if own else f"{self.failure} in phase {self.phase}"


def _bytes(size: str) -> float | None:
    """A size as torch prints it, "1.74 GiB" or "512 bytes"; None for anything else."""
    number, _, unit = size.partition(" ")
    try:
        return float(number) * 1024.0 ** _UNITS.index(unit)
    except ValueError:
        return None


@dataclass(frozen=True)
class Foreseen:
    """The failure that a start is known to end in; with `hold`, waiting may help.

    A plan is tried all the same where [policy] pinned names `unless_pinned`.
    """

    finding: Finding
    hold: bool = False
    unless_pinned: str = ""
