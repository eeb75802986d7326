"""Read the headers of GGUF files: one file, or all parts of a split one."""

from __future__ import annotations

import os
import time
from pathlib import Path

from caovand.adapters.files import safe_files
from caovand.core.checkpoint.budget import MAX_PARTS, BadHeader, Budget
from caovand.core.checkpoint.gguf import GgufFile, parse
from caovand.core.checkpoint.gguf_model import describe
from caovand.core.checkpoint.values import BadConfig
from caovand.core.facts.inventory import ModelCard
from caovand.core.model_source.gguf import NO_MODEL, PART, SUFFIX


class BadParts(Exception):
    """Why these files are not a complete model, and the remedy."""

    def __init__(self, why: str, remedy: str = "download the model again") -> None:
        super().__init__(why)
        self.remedy = remedy


def first_files(folder: Path) -> list[Path]:
    """The GGUF models in a folder, each represented by its first file."""
    return [
        file
        for file in sorted(folder.glob(f"*{SUFFIX}"))
        if not NO_MODEL.match(file.name)
        and ((part := PART.fullmatch(file.name)) is None or int(part["number"]) == 1)
    ]


def read_model(path: Path) -> ModelCard:
    """Read the model in this file and the parts that follow it; raises BadParts or OSError."""
    names, budget = _parts(path), Budget(time.thread_time)
    files: list[tuple[str, GgufFile]] = []
    for name in names:
        try:
            files.append((name, _header(path.with_name(name), budget)))
        except FileNotFoundError:
            raise BadParts(f"{name} is missing") from None
        except BadHeader as problem:
            raise BadParts(f"{name} is unusable, {problem}") from problem
    _check_counts(files)
    try:
        return describe(files, str(path))
    except BadConfig as problem:
        raise BadParts(
            f"{names[0]} does not describe a language model: {problem}",
            "set [model] path to another file",
        ) from problem


def _header(path: Path, budget: Budget) -> GgufFile:
    with os.fdopen(safe_files.open_regular(path), "rb", buffering=0) as file:
        return parse(file.read, os.fstat(file.fileno()).st_size, budget)


def _parts(path: Path) -> list[str]:
    part = PART.fullmatch(path.name)
    if part is None:
        return [path.name]
    count = int(part["count"])
    if int(part["number"]) != 1:
        first = f"{part['stem']}-00001-of-{part['count']}.gguf"
        raise BadParts(
            f"it is part {int(part['number'])} of {count}",
            f"set [model] path to the first, {first}",
        )
    if not 1 <= count <= MAX_PARTS:
        raise BadParts(f"its name claims {count} parts")
    return [f"{part['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def _check_counts(files: list[tuple[str, GgufFile]]) -> None:
    """Raise BadParts unless the number of files and of tensors is what the first file says."""
    declared = files[0][1].values.get("split.count", 1)
    if declared not in (len(files), 0) and not (declared == 1 and len(files) == 1):
        raise BadParts(
            f"{files[0][0]} is the first of {declared} parts, but its name says {len(files)}"
        )
    wanted = files[0][1].values.get("split.tensors.count")
    have = sum(len(file.tensors) for _, file in files)
    if len(files) > 1 and wanted is not None and wanted != have:
        raise BadParts(f"its parts contain {have} of {wanted} tensors")
