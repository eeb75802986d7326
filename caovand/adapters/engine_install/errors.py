"""The error of installing and switching engines, and pip's failures as one line with a remedy."""

from __future__ import annotations

import re

from caovand.adapters.engine_install.commands import Finished
from caovand.core.problem import ProblemError

_UNREACHABLE = re.compile(
    r"Retrying \(Retry\(|Failed to establish a new connection|Failed to resolve|"
    r"Connection to \S+ timed out|Read timed out|ProxyError|SSLError|Connection broken"
)


class EngineError(ProblemError):
    """An engine could not be installed, proven or switched; callers print it and exit with 1."""


def not_found(output: str) -> str | None:
    """The requirement that no index had; None if the failure is another one."""
    match = re.search(r"No matching distribution found for (\S+)", output)
    return match[1] if match else None


def unreachable(output: str) -> bool:
    """Whether an index did not answer; pip then also reports that it found no package."""
    return _UNREACHABLE.search(output) is not None


def explain_pip(what: str, finished: Finished) -> EngineError:
    """Explain why pip or uv failed at `what`."""
    output = finished.output
    if "No space left on device" in output:
        return EngineError(what, "the disk is full", "free some space and run the command again")
    if "DO NOT MATCH THE HASHES" in output or "Hash mismatch" in output:
        culprit = re.search(r"^[ \t]+(\S+) from \S.*:$", output, re.MULTILINE)
        got = re.search(r"Got\s+([0-9a-f]{64})", output)
        return EngineError(
            f"get {culprit[1]}" if culprit else what,
            f"the index offers a file with sha256 {got[1] if got else 'unknown'}, which is not "
            "in the lock",
            "try another mirror; if it happens again, do not trust the source",
        )
    if unreachable(output):
        return EngineError(
            what,
            "the package index cannot be reached",
            "check the network, the proxy and pip's index-url, or install offline with --wheels "
            "DIR; downloaded files are kept",
        )
    if missing := not_found(output):
        return EngineError(
            what,
            f"the configured index has no {missing} for this machine",
            "set PIP_INDEX_URL to a complete index, or install offline with --wheels DIR",
        )
    if "is not a supported wheel on this platform" in output:
        return EngineError(
            what,
            "this system cannot use a wheel of the lock (made for glibc 2.35, x86_64)",
            "use Ubuntu 22.04, Debian 12 or later",
        )
    lines = [line for line in output.splitlines() if line.strip()] or ["nothing"]
    errors = [line for line in lines if line.lower().startswith(("error", "fatal"))] or lines
    return EngineError(
        what,
        f"it exited with status {finished.code} and printed: {errors[-1].strip()}",
        "run the command again; downloaded files are kept",
    )
