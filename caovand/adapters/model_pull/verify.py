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
    for one in made.files:
        meter.begin(one.path)
        path = place.folder / one.path
        try:
            if not matches(path, one, meter.add):
                damage.append(f"{one.path} differs from the publisher's")
        except FileNotFoundError:
            damage.append(f"{one.path} is missing")
        except OSError as problem:
            damage.append(f"{one.path} cannot be read: {problem.strerror}")
    known = {one.path for one in made.files} | {MANIFEST}
    found = (str(path.relative_to(place.folder)) for path in place.folder.rglob("*"))
    folders = {one.path.rpartition("/")[0] for one in made.files}
    strange = [f"{one_line(name)} was not pulled" for name in found if name not in known | folders]
    return damage, sorted(strange)
