"""A vLLM plugin that writes down what this process of an engine may open of its daemon's files.

`test_confinement.py` copies it into a folder that only its engines import from.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

HERE = Path(__file__).parent


def register() -> None:
    """Open logs of daemons, which an engine cannot if they confine it; every process runs this."""
    found = set[str]()
    for file in Path(os.environ["REACHING"]).glob("caovan-*/log/**/engine*.log"):
        try:
            file.open().close()
            found.add("opened")
        except OSError as problem:
            found.add(errno.errorcode[problem.errno or 0])
    (HERE / f"reached-{os.getpid()}").write_text(", ".join(sorted(found)))
