"""Download the offered files, check them, and rename the folder once it is complete."""

from __future__ import annotations

from pathlib import Path

from caovand.adapters.files import safe_files
from caovand.adapters.model_pull import folders
from caovand.adapters.model_pull.client import HubClient
from caovand.adapters.model_pull.download import download
from caovand.adapters.model_pull.errors import PullError
from caovand.adapters.model_pull.folders import ModelFolders
from caovand.adapters.model_pull.partial_download import matches
from caovand.adapters.model_pull.world import TransferMeter, World
from caovand.core.model_source.listing import RemoteFile
from caovand.core.model_source.manifest import Manifest
from caovand.core.model_source.selection import Offer
from caovand.core.units import MIB

MARGIN_BYTES = 256 << 20


def pull(client: HubClient, world: World, offer: Offer, place: ModelFolders) -> Manifest:
    """Make `place` this model. Raises PullError and OSError; downloaded data is kept for the next
    attempt.

    Files of an existing model are checked, and reused if they are right.
    """
    what = f"pull {offer.title}"
    made = Manifest(
        offer.title,
        client.hub.endpoint,
        offer.revision,
        offer.commit,
        world.now().isoformat(timespec="seconds"),
        offer.selection.files,
    )
    with safe_files.readable_by_all(), folders.locked(place, what, make=True):
        require_replaceable(place, what)
        folders.sweep(place)
        folders.begin(place, offer.title, made.size_bytes)
        _link_existing(world, place, made)
        _delete_stale(place, made)
        missing = [
            content
            for content in _distinct_contents(made.files)
            if not _blob(place, content).exists()
        ]
        _require_space(world, place, missing, what)
        there = made.size_bytes - sum(content.size_bytes for content in missing)
        meter = TransferMeter(world, made.size_bytes, there)
        for file in missing:
            meter.begin(file.path)
            download(client, world, offer, file, _blob(place, file), meter)
        folders.assemble(place, made)
        folders.publish(place, made)
    return made


def require_replaceable(place: ModelFolders, what: str) -> None:
    """Raise PullError if the folder has something that no pull created."""
    if place.folder.is_symlink() or (
        place.folder.exists()
        and folders.read(place.folder) is None
        and not (place.folder.is_dir() and not any(place.folder.iterdir()))
    ):
        raise PullError(
            what,
            f"{place.folder} exists, but was not pulled by caovanctl",
            "choose another folder with --to, or move that one elsewhere",
        )


def _link_existing(world: World, place: ModelFolders, made: Manifest) -> None:
    """Link the right files of the existing model."""
    before = folders.read(place.folder)
    known = {(file.path, file.digest) for file in before.files} if before else set()
    old = [
        file
        for file in made.files
        if (file.path, file.digest) in known and not _blob(place, file).exists()
    ]
    meter = TransferMeter(world, sum(file.size_bytes for file in old))
    for file in old:
        meter.begin(f"checking {file.path}")
        try:
            right = matches(place.folder / file.path, file, meter.add)
        except OSError:
            right = False
        if right:
            folders.link_existing(place, file.path, str(file.digest))


def _delete_stale(place: ModelFolders, made: Manifest) -> None:
    """Delete files of an earlier revision, to free their space."""
    wanted = {_blob(place, file).name for file in made.files}
    for path in place.blobs.iterdir():
        if path.name.partition(".")[0] not in wanted:
            path.unlink()


def _distinct_contents(files: tuple[RemoteFile, ...]) -> list[RemoteFile]:
    """Each content once, small files first: a problem with them shows before hours of
    downloading."""
    return sorted({file.digest: file for file in files}.values(), key=lambda file: file.size_bytes)


def _blob(place: ModelFolders, file: RemoteFile) -> Path:
    return folders.blob_of(place, str(file.digest))


def _require_space(world: World, place: ModelFolders, missing: list[RemoteFile], what: str) -> None:
    there = sum(path.stat().st_blocks * 512 for path in place.blobs.glob("*.part"))
    needed = sum(file.size_bytes for file in missing) - there + MARGIN_BYTES
    free = world.free_bytes(place.blobs)
    if missing and free < needed:
        raise PullError(
            what,
            f"{place.root} has {free // MIB} MiB free, but {needed // MIB} MiB are needed",
            "free space, or choose another disk with --to DIR",
        )
