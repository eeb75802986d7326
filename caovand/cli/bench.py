"""`caovanctl bench`; implemented in `caovand.lab`."""

from __future__ import annotations

from caovand.lab.bench import VERB

__all__ = ["VERB"]
