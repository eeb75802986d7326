"""`caovanctl bench`; implemented in `caovand.lab`."""

from __future__ import annotations

from caovand.lab.bench.verb import VERB

__all__ = ["VERB"]
