"""Errors of a command: exit status, message and hint."""

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


class CommandError(Exception):
    """A command cannot do its work; `code` is the daemon's if the daemon refused."""

    def __init__(self, status: Exit, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(f"{message}\n  {hint}" if hint else message)
        self.status, self.message, self.hint, self.code = status, message, hint, code
