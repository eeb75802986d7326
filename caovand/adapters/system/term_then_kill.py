"""Stop a child process that may have something to finish."""

from __future__ import annotations

import subprocess


def term_then_kill(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Send TERM, then KILL if it lives `grace_s` longer, and wait for it."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
