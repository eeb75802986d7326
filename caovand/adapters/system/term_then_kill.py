"""Ends a child process that may have something to finish."""

from __future__ import annotations

import subprocess


def term_then_kill(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """TERM, and KILL if it lives `grace_s` longer; it is waited for."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
