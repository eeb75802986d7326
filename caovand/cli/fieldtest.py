"""`caovanctl fieldtest`; implemented in `caovand.lab`."""

from __future__ import annotations

from caovand.lab.fieldtest import VERB

__all__ = ["VERB"]
