"""Find NVML's Python bindings."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

VENDORED = "/usr/lib/caovan/vendor"
"""The folder where the Debian package puts pynvml: the distribution has none, or one that is too
old."""


def pynvml() -> Any:
    """Import pynvml, wherever it is installed; raises ImportError if it is missing."""
    if VENDORED not in sys.path and os.path.isdir(VENDORED):
        sys.path.insert(0, VENDORED)
    return importlib.import_module("pynvml")
