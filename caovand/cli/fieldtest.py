"""`caovanctl fieldtest`; the laboratory has it."""

from __future__ import annotations

from caovand.lab.fieldtest import VERB

__all__ = ["VERB"]
