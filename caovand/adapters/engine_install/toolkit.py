"""A CUDA toolkit inside an engine: its compiler's wheels, in the layout that FlashInfer expects.

FlashInfer and torch expect one folder with bin/nvcc, include, lib64/libcudart.so and, for the
driver, lib64/stubs/libcuda.so. The wheels put their files into site-packages/nvidia/cu13, with
`lib` for lib64, libraries under their numbered names only, and no stub. So ENGINE/cuda has links,
and a stub that is a linker script: it names the driver if one is installed, and nothing otherwise.

All links are relative, so a copy of the engine has its own toolkit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from caovand.adapters.files import safe_files

FOLDER = "cuda"
DRIVER = "libcuda.so.1"
DRIVER_PLACES = tuple(
    map(Path, ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/usr/lib"))
)


def lay_out(engine: Path, drivers: Sequence[Path] = DRIVER_PLACES) -> Path | None:
    """Create the missing parts of ENGINE/cuda; None if the environment has no compiler wheels.

    Correct parts are not touched: a starting engine may be compiling with them.
    """
    nvcc = next(engine.glob("lib/python3*/site-packages/nvidia/cu*/bin/nvcc"), None)
    if nvcc is None:
        return None
    wheels, home = nvcc.parents[1], engine / FOLDER
    stubs = home / "lib64" / "stubs"
    stubs.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "include", "lib", "nvvm"):
        _link(home / name, wheels / name)
    for library in sorted((wheels / "lib").glob("lib*")):
        _link(home / "lib64" / library.name, library)
        plain, numbered, _ = library.name.partition(".so.")
        if numbered and not (wheels / "lib" / f"{plain}.so").exists():
            _link(home / "lib64" / f"{plain}.so", library)
    driver = next((place / DRIVER for place in drivers if (place / DRIVER).exists()), None)
    stub = stubs / "libcuda.so"
    script = f"INPUT({driver})\n" if driver else "/* no driver is installed */\n"
    if not stub.is_file() or stub.read_text(encoding="utf-8") != script:
        safe_files.replace(stub, script, 0o644)
    return home


def _link(place: Path, target: Path) -> None:
    relative = os.path.relpath(target, place.parent)
    if place.is_symlink() and os.readlink(place) == relative:
        return
    new = place.with_name(f"{place.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(relative)
    new.replace(place)
