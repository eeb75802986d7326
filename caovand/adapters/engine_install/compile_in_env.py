"""Compile an environment's Python files to bytecode, one process per core; runs in its own Python.

    python compile_in_env.py SITE-PACKAGES DONE

DONE gets the number of files compiled so far and the total, for the waiting caller.
"""

from __future__ import annotations

import compileall
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

PORTION = 64


def compile_all(files: list[str]) -> int:
    """Compile these files; files that some packages ship for other Pythons fail, which is
    harmless."""
    for file in files:
        compileall.compile_file(file, quiet=2)
    return len(files)


def main(site: str, done_path: str) -> None:
    files = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(site)
        for name in names
        if name.endswith(".py")
    ]
    portions = [files[n : n + PORTION] for n in range(0, len(files), PORTION)]
    done, place = 0, Path(done_path)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for count in pool.map(compile_all, portions):
            done += count
            place.write_text(f"{done} {len(files)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
