"""Read the headers of a checkpoint's shards: every tensor, and missing or damaged shards."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from caovand.adapters.files import safe_files
from caovand.adapters.model_folder.tables import (
    ANOTHER,
    ModelProblem,
    read_table,
    unreadable_problem,
)
from caovand.core.checkpoint.budget import BadHeader, Budget, TooLarge
from caovand.core.checkpoint.safetensors import BadShard, Tensor, header_length, parse_header

OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth")
SHARD_NUMBER = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.safetensors$")
MAX_NAME = 255


def shards_in(folder: Path, table: dict[str, str]) -> list[Path]:
    """The shards that the index names, or all that exist."""
    named = [folder / name for name in sorted(set(table.values()))]
    return named or sorted(folder.glob("*.safetensors"))


def tensors_of(folder: Path, table: dict[str, str], budget: Budget) -> Iterable[Tensor]:
    """Yield every tensor of the checkpoint with this index; the ModelProblem names all bad
    shards."""
    shards = shards_in(folder, table)
    if not shards:
        yield from _other_weights(folder)
        return
    bad = [f"{name} is missing" for name in _missing(folder, shards)]
    refused: list[str] = []
    remedy = "download these files again"
    found: set[str] = set()
    for shard in shards:
        try:
            tensors = _shard(shard, budget)
        except FileNotFoundError:
            continue  # reported as missing above
        except BadHeader as problem:
            bad.append(f"{shard.name} is unusable, {problem}")
            if isinstance(problem, TooLarge):
                remedy = ANOTHER
                break
        except PermissionError:
            refused.append(shard.name)
        except OSError as problem:
            bad.append(f"{shard.name} cannot be read: {problem.strerror}")
        else:
            found.update(tensor.name for tensor in tensors)
            yield from tensors
    if refused and not bad:
        raise unreadable_problem(f"{folder / refused[0]}", folder, len(refused) - 1)
    if not bad and not found.issuperset(table):
        absent = sorted(set(table) - found)
        bad.append(f"no shard contains {absent[0]} and {len(absent) - 1} more tensors of the index")
    if bad:
        more = f" and {len(bad) - 4} more" if len(bad) > 4 else ""
        raise ModelProblem(f"load model {folder}", f"{'; '.join(bad[:4])}{more}", remedy)


def index_of(folder: Path, budget: Budget) -> dict[str, str]:
    """Map each tensor to its shard, if the folder has an index."""
    name = "model.safetensors.index.json"
    index = read_table(folder, name, budget)
    if index is None:
        return {}
    table = index.get("weight_map")
    if not isinstance(table, dict) or not table:
        raise ModelProblem(
            f"load model {folder}", f"{name} has no weight_map", "download that file again"
        )
    with suppress(TypeError):  # a shard's name may be a table
        if "".join(table).isprintable() and all(map(_is_plain, set(table.values()))):
            return table
    for tensor, shard in table.items():
        if not _is_plain(shard) or not tensor.isprintable():
            raise ModelProblem(
                f"load model {folder}",
                f"{name} places {reprlib.repr(tensor)} in {reprlib.repr(shard)}, which is not a"
                " file name",
                "download that file again",
            )
    return table


def _is_plain(name: Any) -> bool:
    """Whether this can be the name of a file directly in the folder."""
    fits = isinstance(name, str) and name.isprintable() and 0 < len(name.encode()) <= MAX_NAME
    return fits and "/" not in name and name not in (".", "..")


def _shard(path: Path, budget: Budget) -> list[Tensor]:
    if not path.is_file():
        path.stat()  # raises if it is missing or closed to us
        raise BadShard("it is not a file")
    with os.fdopen(safe_files.open_regular(path), "rb") as shard:
        budget.begin_part()
        size_bytes = os.fstat(shard.fileno()).st_size
        length = header_length(shard.read(8), size_bytes)
        budget.require(length)
        header = shard.read(length)
    return parse_header(header, size_bytes, budget)


def _missing(folder: Path, shards: list[Path]) -> list[str]:
    """Name the missing shards, by the index and by their numbering."""
    missing = {shard.name for shard in shards if not shard.exists()}
    for match in filter(None, (SHARD_NUMBER.match(shard.name) for shard in shards)):
        stem, _, last = match.groups()
        if int(last) <= 10_000:
            numbered = (f"{stem}-{n:05}-of-{last}.safetensors" for n in range(1, int(last) + 1))
            missing.update(name for name in numbered if not (folder / name).exists())
            break
    return sorted(missing)


def _other_weights(folder: Path) -> Iterable[Tensor]:
    """Yield pickled weights: only their sizes are known without loading them."""
    files = sorted(file for pattern in OTHER_WEIGHTS for file in folder.glob(pattern))
    if not files:
        raise ModelProblem(
            f"load model {folder}", "it has no weights (*.safetensors)", "download them"
        )
    for file in files:
        try:
            yield Tensor(file.name, "BF16", file.stat().st_size)
        except OSError as problem:
            raise ModelProblem(
                f"load model {folder}",
                f"{file.name}: {problem.strerror}",
                "download that file again",
            ) from problem
