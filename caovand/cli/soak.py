"""`caovanctl soak`; the laboratory has it."""

from __future__ import annotations

from caovand.lab.soak import VERB

__all__ = ["VERB"]
