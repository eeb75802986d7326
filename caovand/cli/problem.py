"""What a verb ends with where it cannot do its work."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit statuses of caovanctl."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_SERVING = 3
    NOT_REACHABLE = 4
    NOT_PERMITTED = 5


class Problem(Exception):
    """What a verb cannot do, the fact and the remedy, and the exit status that goes with it."""

    def __init__(self, status: Exit, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(f"{message}\n  {hint}" if hint else message)
        self.status, self.message, self.hint, self.code = status, message, hint, code
