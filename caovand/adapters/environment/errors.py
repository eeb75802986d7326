"""The one error of making and switching engines; whoever catches it prints it and exits 1."""

from __future__ import annotations


class EngineError(Exception):
    """Something that kept an engine from being made, proved or switched.

    Its text reads "cannot <what>: <fact>; <remedy>" and is meant for people as it is.
    """

    def __init__(self, what: str, fact: str, remedy: str) -> None:
        self.message = f"cannot {what}: {fact}"
        super().__init__(f"{self.message}; {remedy}")
        self.what = what
        self.fact = fact
        self.remedy = remedy
