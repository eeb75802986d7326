"""A model's folder without its weights: configuration, and shards that consist of headers and
holes.

A planner reads only sizes and headers, so it can plan a model that was not downloaded.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from caovand.adapters import model_folder
from caovand.adapters.files import safe_files
from caovand.adapters.model_pull.client import ConnectionCut, HubClient
from caovand.adapters.model_pull.errors import PullError
from caovand.adapters.model_pull.offer import fetch_small_file
from caovand.adapters.model_pull.patience import FEW_ATTEMPTS, require_success, retry_cut
from caovand.adapters.model_pull.world import World
from caovand.core.checkpoint.budget import BadHeader, Budget
from caovand.core.checkpoint.gguf import parse
from caovand.core.checkpoint.safetensors import header_length
from caovand.core.model_source import selection
from caovand.core.model_source.listing import RemoteFile
from caovand.core.model_source.selection import Offer

PARSED_FILES = frozenset({
    "config.json", "hf_quant_config.json", "tokenizer_config.json", "chat_template.jinja",
    "chat_template.json", selection.INDEX,
})  # fmt: skip
FIRST_BYTES = 64 << 10
"""Most headers are shorter."""


@contextlib.contextmanager
def fetch_headers(client: HubClient, world: World, offer: Offer) -> Iterator[Path]:
    """The folder, as long as the caller plans with it. Raises PullError."""
    with tempfile.TemporaryDirectory(prefix="caovan-model-") as name:
        folder = Path(name)
        for file in offer.selection.files:
            if file.path in PARSED_FILES:
                _write(
                    folder / file.path,
                    fetch_small_file(client, world, offer, file),
                    file.size_bytes,
                )
            elif file.path in model_folder.TOKENIZERS:
                _write(folder / file.path, b"", 0)  # only its existence matters
        shards, budget = offer.selection.weights, Budget(time.thread_time)
        for done, shard in enumerate(shards):
            world.progress(done, len(shards), f"reading headers: {shard.path}")
            start = _header(client, world, offer, shard, budget)
            _write(folder / shard.path, start, shard.size_bytes)
        yield folder


def _header(
    client: HubClient, world: World, offer: Offer, shard: RemoteFile, budget: Budget
) -> bytes:
    """The start of a shard up to the end of its header, or a little further.

    No hash exists to check it with yet.
    """
    cannot = f"pull {offer.title}"
    if offer.variant:
        return _gguf_header(client, world, offer, shard, budget)
    start = _range(client, world, offer, shard, 0, min(FIRST_BYTES, shard.size_bytes))
    try:
        budget.begin_part()
        end = 8 + header_length(start[:8], shard.size_bytes)
        budget.spend(size_bytes=end)
    except BadHeader as problem:
        raise PullError(
            cannot, f"{shard.path} is unusable, {problem}", "choose another revision or checkpoint"
        ) from None
    if end > len(start):
        start += _range(client, world, offer, shard, len(start), end)
    return start[:end]


def _gguf_header(
    client: HubClient, world: World, offer: Offer, part: RemoteFile, budget: Budget
) -> bytes:
    """The start of a GGUF file: where its header ends is known only after reading all of it."""
    got: list[bytes] = []

    def read(count: int) -> bytes:
        begin = sum(map(len, got))
        end = min(begin + count, part.size_bytes)
        got.append(_range(client, world, offer, part, begin, end) if begin < end else b"")
        return got[-1]

    try:
        parse(read, part.size_bytes, budget)
    except BadHeader as problem:
        raise PullError(
            f"pull {offer.title}", f"{part.path} is unusable, {problem}", "choose another GGUF file"
        ) from None
    return b"".join(got)


def _range(
    client: HubClient, world: World, offer: Offer, shard: RemoteFile, begin: int, end: int
) -> bytes:
    """The bytes of a shard from `begin` up to `end`."""
    cannot = f"pull {offer.title}"
    url = client.hub.file(offer.name, offer.address, shard.path)

    def fetch() -> bytes:
        with client.get(url, {"Range": f"bytes={begin}-{end - 1}"}) as answer:
            require_success(client, answer, cannot, f"{shard.path} does not exist there")
            ranged = answer.headers.get("content-range", "").startswith(f"bytes {begin}-")
            if answer.status == 206 and not ranged:
                raise PullError(
                    cannot,
                    f"the server sent a different part of {shard.path} than requested",
                    "check the endpoint and the proxy",
                )
            # A server without ranges sends the whole file from its start.
            skip = 0 if answer.status == 206 else begin
            data = b"".join(answer.pieces(skip + end - begin))[skip:]
        if len(data) < end - begin:
            raise ConnectionCut("the answer ended early")
        return data

    return retry_cut(world, fetch, cannot, FEW_ATTEMPTS)


def _write(path: Path, start: bytes, size_bytes: int) -> None:
    """Create a file of this size that starts with these bytes; the rest is a hole and takes no
    space."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(safe_files.open_own(path, safe_files.NEW), "wb") as file:
        file.write(start)
        file.truncate(size_bytes)
