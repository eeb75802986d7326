"""The folders of pulled models, and moving a complete one into place.

    ROOT/OWNER--NAME/              a model, and in it caovan-model.json: what was pulled
    ROOT/OWNER--NAME--Q4_K_M/      one of a repository's GGUF models
    ROOT/.pulling-OWNER--NAME/     one that is not complete; never under the final name
        pull.json                  how much it will be
        blobs/sha256-ab12...       a checked file, by its hash: it outlives a new commit
        blobs/sha256-ab12....part  a begun one, and .json: the ETag it was started with
        model/                     the complete folder, a moment before it is renamed
    ROOT/.removing-OWNER--NAME/    what is being deleted
    ROOT/.OWNER--NAME.lock         there while one of them changes

The service's user reads all of it and writes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from caovand.adapters.files import installed, safe_files
from caovand.adapters.model_pull.errors import PullError
from caovand.core.model_source import manifest
from caovand.core.model_source.listing import BadListing, split_name
from caovand.core.model_source.manifest import Manifest
from caovand.core.model_source.selection import MANIFEST

DEFAULT_ROOT = Path("/var/lib/caovan/models")
ROOT_VARIABLE = "CAOVAN_MODELS"
MAX_BYTES = 4 << 20
_STAGING = ".pulling-"
_PURPOSE = "pull.json"


@dataclass(frozen=True)
class ModelFolders:
    """A model's folder and those around it."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder.parent

    @property
    def staging(self) -> Path:
        return self.folder.with_name(_STAGING + self.folder.name)

    @property
    def blobs(self) -> Path:
        return self.staging / "blobs"

    @property
    def assembled(self) -> Path:
        return self.staging / "model"

    @property
    def grave(self) -> Path:
        return installed.grave_of(self.folder)

    @property
    def lock(self) -> Path:
        return self.folder.with_name(f".{self.folder.name}.lock")


@dataclass(frozen=True)
class Unfinished:
    """An unfinished pull: the model, and how much of it has been downloaded."""

    name: str
    size_bytes: int
    done_bytes: int


def root_from(option: str | None, environ: Mapping[str, str]) -> Path:
    """The models' folder: the option, else `ROOT_VARIABLE`, else the system's."""
    return installed.root_from(option, environ, ROOT_VARIABLE, DEFAULT_ROOT)


def place_of(root: Path, name: str) -> ModelFolders:
    """The place for the model OWNER/NAME or OWNER/NAME:TYPE."""
    return ModelFolders(root / name.replace("/", "--").replace(":", "--"))


def find(root: Path, text: str) -> ModelFolders:
    """The place of OWNER/NAME[:TYPE], or of a folder, by its name in the root or by its path."""
    if split_name(text):
        known = place_of(root, text)
        if known.folder.is_dir() or known.staging.is_dir() or not Path(text).exists():
            return known
    if "/" not in text and text not in ("", ".", ".."):
        return ModelFolders(root / text)
    return ModelFolders(Path(os.path.abspath(text)))


def read(folder: Path) -> Manifest | None:
    """Read the manifest of a pulled model; None for a folder of another origin."""
    try:
        return manifest.read(json.loads(safe_files.read(folder / MANIFEST, MAX_BYTES)))
    except (OSError, ValueError, RecursionError, BadListing, AttributeError):
        return None


def require(place: ModelFolders, what: str) -> Manifest:
    """The manifest of a pulled model; raises PullError if there is none."""
    pulled = read(place.folder)
    if pulled is not None and not place.folder.is_symlink():
        return pulled
    if place.staging.is_dir():
        fact, remedy = f"{place.folder.name} is not complete", "run the same model pull again"
    elif place.folder.is_dir():
        fact = f"{place.folder} has no {MANIFEST}: it was not pulled by caovanctl"
        remedy = "choose a model from `caovanctl model list`"
    else:
        fact, remedy = (
            f"{place.folder} does not exist",
            "`caovanctl model list` shows the pulled models",
        )
    raise PullError(what, fact, remedy)


def models(root: Path) -> list[tuple[ModelFolders, Manifest]]:
    """Every complete model, by its folder's name."""
    return [
        (ModelFolders(path), found)
        for path in installed.folders(root)
        if not path.name.startswith(".") and (found := read(path)) is not None
    ]


def unfinished(root: Path) -> list[Unfinished]:
    """Incomplete pulls."""
    pulls = []
    for path in installed.folders(root):
        if not path.name.startswith(_STAGING):
            continue
        name, size = path.name.removeprefix(_STAGING), 0
        with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError, TypeError):
            kept = json.loads(safe_files.read(path / _PURPOSE, MAX_BYTES))
            name, size = str(kept.get("name")), int(kept.get("size", 0))
        pulls.append(Unfinished(name, size, sum(_sizes(path / "blobs"))))
    return pulls


def begin(place: ModelFolders, name: str, size_bytes: int) -> None:
    """Create the folder of an unfinished pull."""
    place.blobs.mkdir(parents=True, exist_ok=True)
    purpose = json.dumps({"name": name, "size": size_bytes})
    safe_files.replace(place.staging / _PURPOSE, purpose, 0o644)


def publish(place: ModelFolders, made: Manifest) -> None:
    """Add the manifest to the assembled folder, and move it to its final name."""
    safe_files.replace(
        place.assembled / MANIFEST, json.dumps(made.document(), indent=1) + "\n", 0o644
    )
    if place.folder.is_dir():
        os.rename(place.folder, place.grave)
    os.rename(place.assembled, place.folder)
    shutil.rmtree(place.staging)
    shutil.rmtree(place.grave, ignore_errors=True)


def assemble(place: ModelFolders, made: Manifest) -> None:
    """Link the checked files under their names in a new folder."""
    shutil.rmtree(place.assembled, ignore_errors=True)
    placed: dict[Path, Path] = {}
    for file in made.files:
        target = place.assembled / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        blob = blob_of(place, str(file.digest))
        try:
            os.link(blob, target)  # not moved: a kill in between would lose the download
        except OSError:  # a file system without links
            if blob in placed:
                safe_files.copy(placed[blob], target)
            else:
                os.replace(blob, target)
        placed.setdefault(blob, target)


def blob_of(place: ModelFolders, digest: str) -> Path:
    """The path of the checked file with this hash."""
    return place.blobs / digest.replace(":", "-")


def link_existing(place: ModelFolders, path: str, digest: str) -> bool:
    """Link a file of the folder that will be replaced, without a copy; False if that is
    impossible."""
    try:
        os.link(place.folder / path, blob_of(place, digest), follow_symlinks=False)
    except OSError:
        return False
    return True


def discard(place: ModelFolders) -> None:
    """Delete a model, complete or not."""
    sweep(place)
    if place.folder.is_dir():
        os.rename(place.folder, place.grave)
        shutil.rmtree(place.grave)
    if place.staging.is_dir():
        shutil.rmtree(place.staging)


def sweep(place: ModelFolders) -> None:
    """Finish a deletion that was killed."""
    if place.grave.is_dir():
        shutil.rmtree(place.grave)


@contextlib.contextmanager
def locked(place: ModelFolders, what: str, *, make: bool = False) -> Iterator[None]:
    """Lock a model's place; raises PullError if it is locked already, or if others can write there.

    With `make` its parent folder is created.
    """
    require_own(place.root, what)
    busy = f"another model command is running on {place.folder}"
    with installed.locked(place.lock, what, busy, PullError, make=make):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                place.lock.unlink()


def require_own(folder: Path, what: str) -> None:
    """Raise PullError if we cannot write there, or are root and another user can change files."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK):
        raise PullError(
            what,
            f"this user cannot write to {there}",
            "run this with sudo, or choose your own folder with --root or --to",
        )
    installed.require_own(folder, what, PullError)


def closed_to_others(folder: Path) -> Path | None:
    """The first folder on the path that the service's user cannot enter, if any."""
    for path in reversed((folder, *folder.parents)):
        if not path.stat().st_mode & 0o001:
            return path
    return None


def _sizes(folder: Path) -> Iterator[int]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(".json"):
                yield entry.stat(follow_symlinks=False).st_size
