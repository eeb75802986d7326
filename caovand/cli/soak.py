"""`caovanctl soak`; implemented in `caovand.lab`."""

from __future__ import annotations

from caovand.lab.soak.verb import VERB

__all__ = ["VERB"]
