"""Select the files that an engine needs: one set of weights with its configuration."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from caovand.core.model_source.gguf import SUFFIX, Variant
from caovand.core.model_source.listing import RemoteFile

INDEX = "model.safetensors.index.json"
MANIFEST = "caovan-model.json"
"""The file that caovan adds to a model's folder."""
_WEIGHTS = ".safetensors"
_SECOND_SET = "consolidated"  # the same weights under Mistral's own file names
_SETTINGS = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".spm")
_TERMS = re.compile(r"(?i)(licen[cs]e|notice|usage_policy|use_policy)(\.(md|txt))?")
_FOLDERS = re.compile(r"\d+_[A-Za-z]+/config\.json|additional_chat_templates/[^/]+\.jinja")
"""Files that Transformers reads from subfolders: pooling of embedding models, extra chat
templates."""
_OTHER_WEIGHTS = (
    ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".ot", ".gguf", ".pkl", ".npz",
    ".bin.index.json", ".msgpack.index.json", ".h5.index.json", ".tflite", ".mlmodel",
)  # fmt: skip
OTHER_WEIGHTS = "weights in other formats"
OTHER_TYPES = "other GGUF files"
SECOND_WEIGHTS = "second copies of weights"
CODE = "Python code"
FOLDERS = "folders"
REST = "other files"


@dataclass(frozen=True)
class FileSelection:
    """The files to download, and the names of the others by kind."""

    files: tuple[RemoteFile, ...]
    left_out: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def weights(self) -> tuple[RemoteFile, ...]:
        return tuple(file for file in self.files if file.path.endswith((_WEIGHTS, SUFFIX)))

    def of(self, kind: str) -> tuple[str, ...]:
        """Names of skipped files of one kind."""
        return dict(self.left_out).get(kind, ())


@dataclass(frozen=True)
class Offer:
    """A model at one revision; files are requested at `address`, the commit if known.

    `variant` names one of a repository's GGUF models; empty for safetensors.
    """

    name: str
    revision: str
    commit: str
    selection: FileSelection
    variant: str = ""

    @property
    def address(self) -> str:
        return self.commit or self.revision

    @property
    def title(self) -> str:
        """The model's name as typed and displayed."""
        return f"{self.name}:{self.variant}" if self.variant else self.name

    @property
    def model(self) -> str:
        """Path of the model in its folder: its first GGUF file; empty for the folder itself."""
        return self.selection.weights[0].path if self.variant else ""


def choose(files: Iterable[RemoteFile], shards: Collection[str], *, code: bool) -> FileSelection:
    """Select the files to download; `shards` are those of the index, none without one."""
    everything = tuple(files)
    has_first = any(_is_first_set(file.path) for file in everything)
    kept: list[RemoteFile] = []
    left: dict[str, list[str]] = {}
    for file in everything:
        kind = _kind(file.path, shards, has_first=has_first)
        if not kind or (kind == CODE and code):
            kept.append(file)
        else:
            left.setdefault(kind, []).append(file.path)
    return FileSelection(tuple(kept), tuple((kind, tuple(left[kind])) for kind in sorted(left)))


def choose_gguf(files: Iterable[RemoteFile], variant: Variant) -> FileSelection:
    """Select the files of one of a repository's GGUF models: its parts, and the licence."""
    kept, left = list(variant.files), []
    for file in files:
        if _TERMS.fullmatch(file.path):
            kept.append(file)
        elif file not in variant.files and file.path.endswith(SUFFIX):
            left.append(file.path)
    return FileSelection(tuple(kept), ((OTHER_TYPES, tuple(left)),) if left else ())


def _is_first_set(path: str) -> bool:
    return path.endswith(_WEIGHTS) and "/" not in path and not path.startswith(_SECOND_SET)


def _kind(path: str, shards: Collection[str], *, has_first: bool) -> str:
    """The kind of a skipped file; empty for one that is needed."""
    if path.startswith(".") or "/." in path or path == MANIFEST:
        return REST
    if path.endswith(".py"):
        return CODE
    if "/" in path:
        return "" if _FOLDERS.fullmatch(path) else FOLDERS
    if path.endswith(_OTHER_WEIGHTS):
        return OTHER_WEIGHTS
    if path.endswith(_WEIGHTS):
        second = path not in shards if shards else has_first and path.startswith(_SECOND_SET)
        return SECOND_WEIGHTS if second else ""
    if path.endswith(".index.json") and path != INDEX:
        return SECOND_WEIGHTS
    return "" if path.endswith(_SETTINGS) or _TERMS.fullmatch(path) else REST
