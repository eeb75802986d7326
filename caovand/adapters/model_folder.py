"""A model's folder turned into a ModelCard: config.json and the headers of its weights."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from caovand.core.checkpoint import weigh
from caovand.core.inventory import ModelCard
from caovand.core.model_config import BadConfig, describe, invented_weights
from caovand.core.safetensors import BadShard, Tensor, header_length, parse_header

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model")
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth")
SHARD_NUMBER = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.safetensors$")
HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$", re.ASCII)


class ModelProblem(Exception):
    """The model cannot be served from what is there; says what is wrong and what mends it."""


def read_model(path: str, weights: bool = True) -> ModelCard:
    """What this folder, or this name on the hub, holds.

    A hub model that was never downloaded gives a card with no architecture: vLLM fetches it.
    Without `weights` (vLLM's --load-format dummy) the folder needs none.
    """
    if not path:
        raise ModelProblem("cannot tell which model to serve: none is named; set [model] path")
    place = Path(path).expanduser()
    if place.is_dir():
        folder = Path(os.path.abspath(place))
    elif place.exists():
        raise ModelProblem(
            f"cannot read model {path}: it is a file; set [model] path to the folder around it"
        )
    elif not HUB_NAME.match(path):
        raise ModelProblem(
            f"cannot read model {path}: there is no such folder; set [model] path to one with a "
            "config.json in it, or to a name on the hub such as Qwen/Qwen3-0.6B"
        )
    else:
        kept = _downloaded(path)
        if kept is None:
            return ModelCard(path, "", "", (), 0, folder=False)
        return replace(_read(kept, weights), path=path, folder=False)
    return _read(folder, weights)


def _read(folder: Path, weights: bool) -> ModelCard:
    config = _json(folder, "config.json")
    if config is None:
        hint = " (a GGUF file is no such folder)" if list(folder.glob("*.gguf")) else ""
        raise ModelProblem(
            f"cannot read model {folder}: it has no config.json{hint}; "
            "point [model] path at the folder that `hf download` made, or download it again"
        )
    tokenizer = _json(folder, "tokenizer_config.json") or {}
    try:
        card = describe(config, tokenizer, str(folder))
    except BadConfig as problem:
        raise ModelProblem(
            f"cannot read model {folder}: config.json is of no language model, {problem}; "
            "download the model again"
        ) from None
    notes: tuple[str, ...] = ()
    if weights:
        tensors = list(_tensors(folder))
        sums = weigh(((t.name, t.dtype, t.size) for t in tensors), len(card.layer_types))
        card = replace(card, weights=sums)
        if card.mtp_layers and not card.size("mtp"):
            card = replace(card, mtp_layers=0)
            notes += ("config.json speaks of an MTP head, but the weights have none",)
    else:
        card = replace(card, weights=invented_weights(config, card))
    if not any((folder / name).exists() for name in TOKENIZERS):
        notes += ("there is no tokenizer in the folder",)
    return replace(card, chat_template=_chat_template(folder, tokenizer), notes=notes)


def _tensors(folder: Path) -> Iterable[Tensor]:
    """Every tensor of the checkpoint; ModelProblem names all the shards that are bad."""
    shards = sorted(folder.glob("*.safetensors"))
    index = _json(folder, "model.safetensors.index.json")
    table = index.get("weight_map") if index else None
    named = {str(name) for name in table.values()} if isinstance(table, dict) else set()
    if named:
        shards = [folder / name for name in sorted(named)]
    if not shards:
        yield from _other_weights(folder)
        return
    bad = [f"{name} is missing" for name in _missing(folder, shards)]
    found: set[str] = set()
    for shard in shards:
        if not shard.exists():
            continue
        try:
            tensors = _shard(shard)
        except BadShard as problem:
            bad.append(f"{shard.name} is unusable, {problem}")
        except OSError as problem:
            bad.append(f"{shard.name} cannot be read: {problem.strerror}")
        else:
            found.update(tensor.name for tensor in tensors)
            yield from tensors
    if not bad and isinstance(table, dict) and not found.issuperset(table):
        absent = sorted(set(table) - found)
        bad.append(f"no shard holds {absent[0]} and {len(absent) - 1} more tensors of the index")
    if bad:
        more = f" and {len(bad) - 4} more" if len(bad) > 4 else ""
        raise ModelProblem(
            f"cannot load model {folder}: {'; '.join(bad[:4])}{more}; download these files again"
        )


def _shard(path: Path) -> list[Tensor]:
    size = path.stat().st_size
    with path.open("rb") as shard:
        length = header_length(shard.read(8), size)
        return parse_header(shard.read(length), size)


def _missing(folder: Path, shards: list[Path]) -> list[str]:
    """Shards the index or the numbering names that are not there."""
    missing = {shard.name for shard in shards if not shard.exists()}
    for match in filter(None, (SHARD_NUMBER.match(shard.name) for shard in shards)):
        stem, _, last = match.groups()
        if int(last) <= 10_000:
            numbered = (f"{stem}-{n:05}-of-{last}.safetensors" for n in range(1, int(last) + 1))
            missing.update(name for name in numbered if not (folder / name).exists())
            break
    return sorted(missing)


def _other_weights(folder: Path) -> Iterable[Tensor]:
    """Pickled weights: their sizes are all that can be told without loading them."""
    files = sorted(file for pattern in OTHER_WEIGHTS for file in folder.glob(pattern))
    if not files:
        raise ModelProblem(
            f"cannot load model {folder}: it has no weights (*.safetensors); download them"
        )
    for file in files:
        yield Tensor(file.name, "BF16", (), file.stat().st_size)


def _json(folder: Path, name: str) -> dict[str, Any] | None:
    """The table in this file, None where there is no such file."""
    path = folder / name
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except PermissionError:
        raise ModelProblem(
            f"cannot read {path}: this user may not; run `chmod -R a+rX {folder}` and let others "
            "pass the folders above it"
        ) from None
    except OSError as problem:
        raise ModelProblem(f"cannot read {path}: {problem.strerror}; check the disk") from None
    except (ValueError, RecursionError) as problem:
        raise ModelProblem(
            f"cannot read {path}: it is no JSON ({problem}); download the file again"
        ) from None
    if not isinstance(content, dict):
        raise ModelProblem(f"cannot read {path}: it holds no table; download the file again")
    return content


def _chat_template(folder: Path, tokenizer: dict[str, Any]) -> str | None:
    try:
        return (folder / "chat_template.jinja").read_text(errors="replace")
    except OSError:
        pass
    kept = tokenizer.get("chat_template")
    if isinstance(kept, list):
        texts = [entry.get("template") for entry in kept if isinstance(entry, dict)]
        kept = "\n".join(text for text in texts if isinstance(text, str))
    if isinstance(kept, str) and kept:
        return kept
    aside = _json(folder, "chat_template.json") or {}
    text = aside.get("chat_template")
    return text if isinstance(text, str) else None


def _downloaded(name: str) -> Path | None:
    """The newest snapshot of a hub model in the local cache."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    snapshots = list((cache / f"models--{name.replace('/', '--')}" / "snapshots").glob("*"))
    whole = [folder for folder in snapshots if (folder / "config.json").exists()]
    return max(whole, key=lambda folder: folder.stat().st_mtime, default=None)
