"""Delay before the next attempt."""

from __future__ import annotations

FIRST_S = 1.0
MAX_S = 300.0
SPREAD = 0.1


def delay(attempt: int, chance: float) -> float:
    """Seconds to wait after failure number `attempt`: 1, 2, 4 ... 300, plus or minus 10 %.

    `chance` in [0, 1) spreads out machines that failed together.
    """
    whole = MAX_S if attempt > 9 else min(FIRST_S * 2.0 ** (attempt - 1), MAX_S)
    return float(whole * (1 + SPREAD * (2 * chance - 1)))
