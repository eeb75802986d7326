"""List a hub's files of a model and choose which to download; nothing is written yet."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from caovand.adapters import model_folder
from caovand.adapters.model_pull.client import ConnectionCut, HubClient
from caovand.adapters.model_pull.errors import PullError
from caovand.adapters.model_pull.partial_download import begin_hash
from caovand.adapters.model_pull.patience import FEW_ATTEMPTS, require_success, retry_cut
from caovand.adapters.model_pull.world import World
from caovand.core.checkpoint.budget import BadHeader, Budget
from caovand.core.model_source import gguf, selection
from caovand.core.model_source.gguf import Variant
from caovand.core.model_source.listing import BadListing, RemoteFile
from caovand.core.model_source.selection import Offer

MAX_LISTING_BYTES = 16 << 20


@dataclass(frozen=True)
class RequestedModel:
    """A model to pull: a repository, and which of its GGUF models.

    With an empty `variant`, `prefer` chooses it; it is called only if there are several and no
    safetensors. `code` is whether the repository's Python files belong to it.
    """

    name: str
    variant: str = ""
    revision: str | None = None
    code: bool = False
    prefer: Callable[[Sequence[Variant]], Variant] = lambda found: found[0]


def read(client: HubClient, world: World, wanted: RequestedModel) -> Offer:
    """Request a model's list of files from the hub. Raises PullError."""
    name, code = wanted.name, wanted.code
    hub = client.hub
    revision = wanted.revision or hub.revision
    cannot = f"pull {name}"
    url = hub.listing(name, revision)

    def list_files() -> Any:
        answer, document = client.json(url, MAX_LISTING_BYTES)
        require_success(client, answer, cannot, f"{hub.title} has no {name} at {revision}")
        return document

    try:
        listing = hub.read(retry_cut(world, list_files, cannot, FEW_ATTEMPTS))
    except BadListing as problem:
        raise PullError(
            cannot,
            f"its file list is unusable: {problem}",
            "check the endpoint and the name",
        ) from None
    offer = Offer(name, revision, listing.commit, selection.choose(listing.files, (), code=code))
    if wanted.variant or not offer.selection.weights:
        variants = gguf.variants(listing.files)
        if variants or wanted.variant:
            variant = _choose_variant(variants, wanted, cannot)
            chosen = selection.choose_gguf(listing.files, variant)
            return Offer(name, revision, listing.commit, chosen, variant.label)
    index = next((file for file in listing.files if file.path == selection.INDEX), None)
    if index is not None:
        shards = _read_index(fetch_small_file(client, world, offer, index), cannot)
        if absent := shards - {file.path for file in listing.files}:
            raise PullError(
                cannot,
                f"the repository lacks {min(absent)}, which its index lists",
                "choose another revision, or inform its publisher",
            )
        chosen = selection.choose(listing.files, shards, code=code)
        offer = Offer(name, revision, listing.commit, chosen)
    _require_weights(offer, cannot)
    return offer


def _choose_variant(variants: tuple[Variant, ...], wanted: RequestedModel, cannot: str) -> Variant:
    """The requested GGUF model. Raises PullError."""
    if not wanted.variant:
        return wanted.prefer(variants)
    if variant := gguf.find_variant(variants, wanted.variant):
        return variant
    labels = ", ".join(option.label for option in variants)
    raise PullError(
        f"{cannot}:{wanted.variant}",
        f"it has no GGUF model {wanted.variant}" if variants else "it has no GGUF model",
        f"choose one of {labels}" if variants else f"omit :{wanted.variant}",
    )


def fetch_small_file(client: HubClient, world: World, offer: Offer, file: RemoteFile) -> bytes:
    """The content of a small file, checked. Raises PullError."""
    cannot = f"pull {offer.title}"
    most = model_folder.MAX_BYTES.get(file.path, model_folder.MAX_OTHER_BYTES)
    if file.size_bytes > most:
        raise PullError(
            cannot, f"its {file.path} is larger than {most >> 20} MiB", "choose another checkpoint"
        )
    url = client.hub.file(offer.name, offer.address, file.path)

    def fetch() -> bytes:
        with client.get(url, {}) as answer:
            require_success(client, answer, cannot, f"{file.path} does not exist")
            data = b"".join(answer.pieces(file.size_bytes + 1))
        found: hashlib._Hash = begin_hash(file.digest, file.size_bytes)
        found.update(data)
        if found.hexdigest() != file.digest.value:
            raise ConnectionCut(f"{file.path} does not have the publisher's hash")
        return data

    return retry_cut(world, fetch, cannot, FEW_ATTEMPTS)


def _read_index(data: bytes, cannot: str) -> frozenset[str]:
    """The files that an index names."""
    try:
        index = Budget(time.thread_time).json(data, model_folder.MAX_VALUES)
        shards = frozenset(index["weight_map"].values())
        if shards and all(isinstance(shard, str) and shard.isprintable() for shard in shards):
            return shards
    except (BadHeader, LookupError, TypeError, AttributeError):
        pass
    raise PullError(
        cannot, f"its {selection.INDEX} lists no files", "choose another revision or checkpoint"
    )


def _require_weights(offer: Offer, cannot: str) -> None:
    paths = {file.path for file in offer.selection.files}
    if not offer.selection.weights:
        others = offer.selection.of(selection.OTHER_WEIGHTS)
        has = f", but {others[0]}" if others else ""
        raise PullError(
            cannot,
            f"it has no weights as safetensors{has}",
            "choose the safetensors checkpoint that it was made from, its AWQ, GPTQ or fp8 "
            "variant, or its GGUF files",
        )
    if "config.json" not in paths:
        raise PullError(
            cannot, "it has no config.json", "choose a checkpoint in the transformers format"
        )
