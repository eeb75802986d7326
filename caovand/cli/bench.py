"""`caovanctl bench`; the laboratory has it."""

from __future__ import annotations

from caovand.lab.bench import VERB

__all__ = ["VERB"]
