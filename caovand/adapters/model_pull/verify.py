"""Compare a pulled model with the hashes in its manifest."""

from __future__ import annotations

from caovand.adapters.model_pull.folders import ModelFolders
from caovand.adapters.model_pull.partial_download import matches
from caovand.adapters.model_pull.world import TransferMeter, World
from caovand.core.model_source.manifest import Manifest
from caovand.core.model_source.selection import MANIFEST
from caovand.core.printable import one_line


def verify(world: World, place: ModelFolders, made: Manifest) -> tuple[list[str], list[str]]:
    """Two lists of lines: files damaged or missing, and files that were not pulled."""
    damage = []
    meter = TransferMeter(world, made.size_bytes)
    for file in made.files:
        meter.begin(file.path)
        path = place.folder / file.path
        try:
            if not matches(path, file, meter.add):
                damage.append(f"{file.path} differs from the publisher's file")
        except FileNotFoundError:
            damage.append(f"{file.path} is missing")
        except OSError as problem:
            damage.append(f"{file.path} cannot be read: {problem.strerror}")
    known = {file.path for file in made.files} | {MANIFEST}
    names = (str(path.relative_to(place.folder)) for path in place.folder.rglob("*"))
    folders = {file.path.rpartition("/")[0] for file in made.files}
    strange = [f"{one_line(name)} was not pulled" for name in names if name not in known | folders]
    return damage, sorted(strange)
