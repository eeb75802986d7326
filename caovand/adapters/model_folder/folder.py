"""Read a model's folder into a ModelCard: config.json and the headers of its weights."""

from __future__ import annotations

import errno
import os
import re
import reprlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from caovand.adapters.files import safe_files
from caovand.adapters.model_folder import gguf_files
from caovand.adapters.model_folder.shards import index_of, shards_in, tensors_of
from caovand.adapters.model_folder.tables import (
    MAX_OTHER_BYTES,
    ModelProblem,
    read_json,
    read_table,
    unreadable_problem,
)
from caovand.core.checkpoint.budget import Budget
from caovand.core.checkpoint.config_json import declares_mtp, describe, invented_weights
from caovand.core.checkpoint.model_task import (
    MODULES,
    TEXT_LENGTH,
    SentenceTransformer,
    pooling_folder,
    sentence_transformer,
    with_task,
)
from caovand.core.checkpoint.quantisation import kept_as_floats
from caovand.core.checkpoint.tensors import sum_sizes
from caovand.core.checkpoint.values import BadConfig
from caovand.core.config.schema import Config
from caovand.core.engine.named_models import NamedModels
from caovand.core.facts.inventory import ModelCard
from caovand.core.model_source.gguf import SUFFIX
from caovand.core.problem import Problem, reason_of

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model")
MISTRAL_FILES = (("consolidated*.safetensors",), ("tekken.json", "tokenizer.model.v*"))
"""Weights and tokenizers in Mistral's own form; vLLM loads its tokenizer only next to both."""
HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$", re.ASCII)
NO_OWNERS = ("models", "datasets", "spaces")
"""First path segments of the hubs' own addresses, which no owner there can use as a name."""
MIN_SIMILARITY = 0.8
_POOLING_FOLDER = re.compile(r"\d{1,3}_[A-Za-z]{1,40}")
"""The names of Sentence Transformers' folders; a path that leads elsewhere is not followed."""
SURPRISES = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""Exceptions that reading a malformed configuration can raise."""


def read_model(path: str, weights: bool = True) -> ModelCard:
    """Read the card of the model in this folder, or with this name on the hub.

    A hub model that was never downloaded has a card without an architecture: vLLM downloads it.
    Without `weights` (vLLM's --load-format dummy) the folder needs none.
    """
    if not path:
        raise no_model_problem()
    try:
        place = Path(path).expanduser()
        is_folder, exists = place.is_dir(), place.exists()
    except (OSError, RuntimeError) as problem:  # an unreadable parent, or no such user
        raise ModelProblem(
            f"read model {path}",
            reason_of(problem),
            "allow this user to enter the folders above it (`chmod a+x`), or set another [model] "
            "path",
        ) from problem
    if is_folder:
        folder = Path(os.path.abspath(place))
    elif exists and place.suffix == SUFFIX:
        return read_gguf(Path(os.path.abspath(place)))
    elif exists:
        raise ModelProblem(
            f"read model {path}", "it is a file", "set [model] path to the folder around it"
        )
    elif not _may_be_on_a_hub(path):
        raise _absent(path, place)
    else:
        kept = _find_download(path)
        if kept is None:
            return ModelCard(path, "", "", (), 0, folder=False)
        return replace(_read(kept, weights), path=path, folder=False)
    return _read(folder, weights)


def no_model_problem() -> ModelProblem:
    """The problem for a configuration without a model."""
    return ModelProblem("choose a model", "[model] path is empty", "set it to a model's folder")


def _may_be_on_a_hub(path: str) -> bool:
    """Whether a path that does not exist can be a hub name, rather than a path that lacks its
    "/"."""
    owner, _, name = path.partition("/")
    is_path = owner in NO_OWNERS or name.endswith(SUFFIX) or Path("/", path).exists()
    return HUB_NAME.match(path) is not None and not is_path


def _absent(path: str, place: Path) -> ModelProblem:
    is_gguf = place.suffix == SUFFIX
    fact = f"there is no such {'file' if is_gguf else 'folder'}"
    if not place.is_absolute() and Path("/", place).exists():
        return ModelProblem(f"read model {path}", fact, f'did you mean "/{path}"?')
    wanted = "a GGUF file" if is_gguf else "a folder with a config.json"
    remedy = (
        f"set [model] path to {wanted}, as a full path, or to a name on the hub such as "
        "Qwen/Qwen3-0.6B"
    )
    with suppress(OSError):
        if close := get_close_matches(place.name, os.listdir(place.parent), 1, MIN_SIMILARITY):
            remedy = f'did you mean "{place.with_name(close[0])}"? Otherwise {remedy}'
    return ModelProblem(f"read model {path}", fact, remedy)


def shards_of(card: ModelCard) -> list[Path]:
    """List the safetensors files of a model that was read; empty if its weights are pickled."""
    folder = Path(card.path) if card.folder else _find_download(card.path)
    return _shards(folder) if folder else []


def _shards(folder: Path) -> list[Path]:
    return shards_in(folder, index_of(folder, Budget(time.thread_time)))


def folder_of(card: ModelCard) -> Path | None:
    """The folder of a model that was read; None if its files are not on this machine."""
    place = Path(card.path) if card.folder else _find_download(card.path)
    return place.parent if place is not None and place.is_file() else place


def file_identities(card: ModelCard) -> list[tuple[str, int, int]]:
    """Name, size and time of each file of a model that was read; raises OSError."""
    folder = folder_of(card)
    files = sorted(folder.iterdir()) if folder else []
    seen = [(file.name, file.stat()) for file in files if file.is_file()]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in seen]


def _read(folder: Path, weights: bool) -> ModelCard:
    budget = Budget(time.thread_time)
    config = read_table(folder, "config.json", budget)
    if config is None:
        files = gguf_files.first_files(folder)
        if files:
            return _gguf_in(folder, files)
        raise ModelProblem(
            f"read model {folder}",
            "it has no config.json",
            "set [model] path to a folder that has one, or to a GGUF file, or download a model with"
            " `sudo caovanctl model pull OWNER/NAME`",
        )
    if not config.get("quantization_config"):  # where ModelOpt before 0.30 wrote it
        quantised = read_table(folder, "hf_quant_config.json", budget)
        config = {**config, "quantization_config": quantised}
    tokenizer = read_table(folder, "tokenizer_config.json", budget) or {}
    added = read_sentence_transformer(folder, budget)
    processor = read_table(folder, "preprocessor_config.json", budget) or {}
    card = _describe(folder, config, tokenizer, processor, added)
    notes = card.notes
    if weights:
        index = index_of(folder, budget)
        tensors = list(tensors_of(folder, index, budget))
        sums = sum_sizes(tensors, len(card.layer_types))
        shards = shards_in(folder, index)
        sizes = [shard.stat().st_size for shard in shards] or [tensor.size for tensor in tensors]
        card = replace(card, weights=sums, largest_file=max(sizes), pickled=not shards)
        if card.quantization:
            card = replace(card, spared=card.spared | kept_as_floats(tensors))
        if card.mtp_layers and not card.size("mtp"):
            card = replace(card, mtp_layers=0)
            if declares_mtp(config):
                notes += (
                    Problem(
                        "",
                        "config.json declares an MTP head, but the weights do not contain one",
                        "to draft with MTP, download a checkpoint that has one",
                    ),
                )
    else:
        card = replace(card, weights=invented_weights(config, card))
    if not any((folder / name).exists() for name in TOKENIZERS):
        notes += (Problem("", "the folder contains no tokenizer", "download the model again"),)
    return replace(
        card,
        chat_template=_chat_template(folder, tokenizer, budget),
        mistral_files=all(any(any(folder.glob(name)) for name in names) for names in MISTRAL_FILES),
        notes=notes,
    )


def _gguf_in(folder: Path, files: list[Path]) -> ModelCard:
    """The only GGUF model of a folder."""
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:4])
        more = f" and {len(files) - 4} more" if len(files) > 4 else ""
        raise ModelProblem(
            f"choose a model in {folder}",
            f"it contains several GGUF models: {names}{more}",
            "set [model] path to one of these files",
        )
    return read_gguf(files[0])


def read_gguf(file: Path) -> ModelCard:
    """The card of a GGUF file, the first of its parts. Raises ModelProblem."""
    try:
        return gguf_files.read_model(file)
    except gguf_files.BadParts as problem:
        reason, remedy = str(problem), problem.remedy
    except PermissionError:
        raise unreadable_problem(str(file), file.parent) from None
    except OSError as problem:
        reason, remedy = str(problem.strerror), "check the disk"
    except SURPRISES as problem:  # last resort: no file may crash the daemon
        reason = f"it cannot be parsed ({type(problem).__name__}: {reprlib.repr(str(problem))})"
        remedy = "download the model again"
    raise ModelProblem(f"load model {file}", reason, remedy)


def _describe(
    folder: Path,
    config: dict[str, Any],
    tokenizer: dict[str, Any],
    processor: dict[str, Any],
    files: SentenceTransformer,
) -> ModelCard:
    try:
        return with_task(describe(config, tokenizer, str(folder), processor), config, files)
    except BadConfig as problem:
        reason = str(problem)
    except SURPRISES as problem:  # last resort: no file may crash the daemon
        reason = f"it cannot be parsed ({type(problem).__name__}: {reprlib.repr(str(problem))})"
    raise ModelProblem(
        f"read model {folder}",
        f"config.json does not describe a language model: {reason}",
        "download the model again",
    )


def _chat_template(folder: Path, tokenizer: dict[str, Any], budget: Budget) -> str | None:
    path = folder / "chat_template.jinja"
    try:
        return safe_files.read(path, MAX_OTHER_BYTES).decode(errors="replace")
    except OSError as problem:
        if problem.errno in (errno.EINVAL, errno.EFBIG):  # vLLM would read this file
            raise ModelProblem(
                f"read {path}", str(problem.strerror), "download the file again"
            ) from None
    kept = tokenizer.get("chat_template")
    if isinstance(kept, list):
        texts = [entry.get("template") for entry in kept if isinstance(entry, dict)]
        kept = "\n".join(text for text in texts if isinstance(text, str))
    if isinstance(kept, str) and kept:
        return kept
    aside = read_table(folder, "chat_template.json", budget) or {}
    text = aside.get("chat_template")
    return text if isinstance(text, str) else None


def _find_download(name: str) -> Path | None:
    """The latest snapshot of a hub model in the local cache."""
    home = Path(os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    snapshots = list((cache / f"models--{name.replace('/', '--')}" / "snapshots").glob("*"))
    whole = [folder for folder in snapshots if (folder / "config.json").exists()]
    return max(whole, key=lambda folder: folder.stat().st_mtime, default=None)


def read_sentence_transformer(folder: Path, budget: Budget) -> SentenceTransformer:
    """Read the files that Sentence Transformers adds to a folder; raises ModelProblem."""
    modules = read_json(folder, MODULES, budget)
    lengths = read_table(folder, TEXT_LENGTH, budget) or {}
    inner = pooling_folder(modules)
    pooling = {}
    if inner and _POOLING_FOLDER.fullmatch(inner):
        pooling = read_table(folder, f"{inner}/config.json", budget) or {}
    return sentence_transformer(modules, pooling, lengths)


def read_named(models: NamedModels, config: Config, environ: Mapping[str, str]) -> ModelCard:
    """The card for [model] path, the name of one of `models`; its path is the GGUF file's.

    Raises ModelProblem.
    """
    name = config.model.path
    if not name:
        raise no_model_problem()
    entry = models.entry(name)
    for folder in models.folders(config, environ) if entry else ():
        place = Path(os.path.abspath(folder))
        table = read_table(place, entry, Budget(time.thread_time))
        if table is None:
            continue
        weights = models.weights(table)
        if not weights:
            raise ModelProblem(
                f"serve model {name}",
                f"{place / entry} does not name a GGUF file",
                "choose another model",
            )
        return read_gguf(place / weights)
    problem = models.missing(name)
    raise ModelProblem(problem.cannot, problem.fact, problem.remedy)
