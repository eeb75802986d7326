"""Copy an environment in seconds and almost no space: its files become hard links.

Neither pip nor Python's compiler writes into a file that is there, both replace it, so what is
changed in the copy does not change the original. Files that hold the original's path are rewritten.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from caovand.adapters.engine_install.places import MARKER, STEPS


def clone(source: Path, target: Path) -> None:
    """Fill `target`, which exists, with the environment `source`; raises OSError if that fails."""
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
