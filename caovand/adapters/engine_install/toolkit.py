"""A CUDA toolkit inside an engine: its compiler's wheels, laid out as FlashInfer looks for them.

FlashInfer and torch want one folder with bin/nvcc, include, lib64/libcudart.so and, for the driver,
lib64/stubs/libcuda.so. The wheels put theirs into site-packages/nvidia/cu13, with `lib` for lib64,
libraries under their numbered names only, and no stub. So ENGINE/cuda has links, and a stub that is
a script of the linker: it names the driver where one is installed, and nothing elsewhere.

All links are relative: a copy of the engine has a toolkit of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

FOLDER = "cuda"
DRIVER = "libcuda.so.1"
DRIVER_PLACES = tuple(
    map(Path, ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/usr/lib"))
)


def lay_out(engine: Path, drivers: Sequence[Path] = DRIVER_PLACES) -> Path | None:
    """Make ENGINE/cuda anew; None where the environment has no wheels of a compiler."""
    nvcc = next(engine.glob("lib/python3*/site-packages/nvidia/cu*/bin/nvcc"), None)
    if nvcc is None:
        return None
    wheels, made = nvcc.parents[1], engine / f"{FOLDER}.new"
    shutil.rmtree(made, ignore_errors=True)
    stubs = made / "lib64" / "stubs"
    stubs.mkdir(parents=True)
    for name in ("bin", "include", "lib", "nvvm"):
        _link(made / name, wheels / name)
    for library in sorted((wheels / "lib").glob("lib*")):
        _link(made / "lib64" / library.name, library)
        plain, numbered, _ = library.name.partition(".so.")
        if numbered and not (wheels / "lib" / f"{plain}.so").exists():
            _link(made / "lib64" / f"{plain}.so", library)
    driver = next((place / DRIVER for place in drivers if (place / DRIVER).exists()), None)
    script = f"INPUT({driver})" if driver else "/* no driver is installed */"
    (stubs / "libcuda.so").write_text(f"{script}\n", encoding="utf-8")
    final = engine / FOLDER
    shutil.rmtree(final, ignore_errors=True)
    made.rename(final)
    return final


def _link(place: Path, target: Path) -> None:
    place.symlink_to(os.path.relpath(target, place.parent))
