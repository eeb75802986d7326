"""What can go wrong with an engine, and what was found of it. The ids are part of the interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Failure = Literal[
    "device-oom-load", "kv-cache-none", "kv-cache-short", "vram-busy", "device-oom-capture",
    "device-oom-run", "sampler-oom", "illegal-access", "launch-failure", "collective-timeout",
    "gpu-lost", "gpu-absent", "host-oom", "compile-cache-stale", "shared-memory-limit",
    "jit-toolchain", "backend-unsupported", "bad-arguments", "model-missing", "network",
    "access-denied", "port-busy", "plugin-error", "compile-failed", "engine-died", "start-stall",
    "hang", "draft-collapse", "unknown",
]  # fmt: skip
FAILURES: tuple[Failure, ...] = get_args(Failure)
# Findings of these phases are caovand's own words: no engine runs that could have put in some.
_OWN_PHASES = frozenset({"plan", "ending"})


@dataclass(frozen=True)
class Finding:
    """A failure with its evidence: the causing line, what was read from it, where it stood.

    `phase` is the startup phase, "serving" or "ending"; `captures` holds numbers and names
    read from the line, such as the context length that would fit. `signature` names the row that
    knew the line, `line` is its number, from 1, in the log that was searched; both are empty where
    no log line told.
    """

    failure: Failure
    text: str
    phase: str = "serving"
    captures: Mapping[str, str] = field(default_factory=dict)
    signature: str = ""
    line: int = 0

    @property
    def silent(self) -> bool:
        """Whether nothing tells why: an engine that is gone without a word may have been killed."""
        return not self.signature or "silent" in self.captures

    @property
    def maybe_killed(self) -> bool:
        """Whether the engine is gone without a word, which says nothing against its plan."""
        return self.failure == "engine-died" and self.silent

    @property
    def kind(self) -> str:
        """What is counted together: a kill from outside makes no other failure more likely."""
        return "killed" if self.maybe_killed else self.failure

    @property
    def public_text(self) -> str:
        """What anybody may read: not what the engine's log or its HTTP server put in."""
        own = self.phase in _OWN_PHASES and not self.line
        return self.text if own else f"{self.failure} in phase {self.phase}"
