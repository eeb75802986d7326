"""The time of day, which everything here reads from this module: on any clock there is an answer.

Python's own raises OverflowError if the machine's clock is set after the year 2262.
"""

from __future__ import annotations

import time

MAX_TIME = 9_223_372_036.0  # in 2262


def now() -> float:
    """Seconds since 1970, at most MAX_TIME."""
    try:
        return time.time()
    except OverflowError:
        return MAX_TIME
