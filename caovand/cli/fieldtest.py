"""`caovanctl fieldtest`; implemented in `caovand.lab`."""

from __future__ import annotations

from caovand.lab.fieldtest.verb import VERB

__all__ = ["VERB"]
