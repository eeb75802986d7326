"""Copy an environment in seconds and almost no space: its files become hard links.

Neither pip nor Python's compiler writes into an existing file: both replace it, so changes in the
copy do not reach the original. Files that contain the original's path are rewritten.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from caovand.adapters.engine_install.places import MARKER, STEPS


def clone(source: Path, target: Path) -> None:
    """Fill `target`, which exists, from the environment `source`; raises OSError on failure."""
    shutil.copytree(
        source,
        target,
        symlinks=True,
        copy_function=os.link,
        ignore=shutil.ignore_patterns(MARKER, STEPS),
        dirs_exist_ok=True,
    )
    mark = re.compile(re.escape(str(source)).encode() + rb"(?![\w.-])")
    for path in (target / "pyvenv.cfg", *(target / "bin").iterdir()):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if mark.search(data):
                part = path.with_name(f"{path.name}.new")
                part.write_bytes(mark.sub(str(target).encode().replace(b"\\", rb"\\"), data))
                shutil.copymode(path, part)
                part.replace(path)
