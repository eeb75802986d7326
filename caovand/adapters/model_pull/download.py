"""Download one file, however often the connection is cut, until it matches the publisher's."""

from __future__ import annotations

import os
from pathlib import Path

from caovand.adapters.model_pull.client import ConnectionCut, HubClient, HubResponse
from caovand.adapters.model_pull.errors import PullError
from caovand.adapters.model_pull.partial_download import PartialDownload
from caovand.adapters.model_pull.patience import Busy, require_success, wait_before_retry
from caovand.adapters.model_pull.world import TransferMeter, World
from caovand.core.model_source import transfer
from caovand.core.model_source.listing import RemoteFile
from caovand.core.model_source.selection import Offer
from caovand.core.model_source.transfer import Do

MAX_WRONG = 2
"""Maximum of complete downloads that do not have the publisher's hash."""


def download(
    client: HubClient,
    world: World,
    offer: Offer,
    file: RemoteFile,
    blob: Path,
    meter: TransferMeter,
) -> None:
    """Make `blob` this file, resuming its partial download. Raises PullError and OSError."""
    cannot = f"pull {offer.title}"
    url = client.hub.file(offer.name, offer.address, file.path)
    path = blob.with_name(blob.name + ".part")
    part = PartialDownload(path, file)
    meter.skip(part.size_bytes)
    try:
        attempt, wrong = 1, 0
        while not part.is_right():
            if part.size_bytes == file.size_bytes:
                wrong += 1
                _restart(part, meter)
                if wrong >= MAX_WRONG:
                    raise PullError(
                        cannot,
                        f"{file.path} did not match the publisher's hash {wrong} times",
                        "check the endpoint and the proxy; the partial file was deleted",
                    )
                world.say(
                    f"      {file.path} does not have the publisher's hash; downloading it again"
                )
            before = part.size_bytes
            try:
                _go_on(client, url, file, part, meter, cannot)
            except ConnectionCut as cut:
                attempt = 1 if part.size_bytes > before else attempt
                wait_before_retry(world, cut, attempt, transfer.MAX_ATTEMPTS, cannot)
                attempt += 1
        os.replace(path, blob)
        part.drop_note()
    finally:
        part.close()


def _go_on(
    client: HubClient,
    url: str,
    file: RemoteFile,
    part: PartialDownload,
    meter: TransferMeter,
    cannot: str,
) -> None:
    """Make one request, and append its bytes to the part. Raises ConnectionCut and PullError."""
    asked = transfer.ask(part.size_bytes, file.size_bytes, part.etag)
    if asked.offset != part.size_bytes:
        _restart(part, meter)
    with client.get(url, asked.headers()) as answer:
        found = transfer.judge(asked, file.size_bytes, answer.status, answer.headers)
        if found.do is Do.WAIT:
            raise Busy(found.why, answer.retry_after_s())
        if found.do is Do.REFUSE:
            require_success(client, answer, cannot, f"{file.path} does not exist there")
            raise PullError(
                cannot,
                f"the answer for {file.path} is refused: {found.why}",
                "check the endpoint and the proxy, or try again later",
            )
        if found.do is Do.START_OVER or found.offset != part.size_bytes:
            _restart(part, meter)
        if found.do is Do.START_OVER:
            raise ConnectionCut(f"{file.path}: {found.why}")
        part.note(answer.headers.get("etag", "")[:256])
        _write(answer, file, part, meter, cannot)


def _write(
    answer: HubResponse, file: RemoteFile, part: PartialDownload, meter: TransferMeter, cannot: str
) -> None:
    left = file.size_bytes - part.size_bytes
    for piece in answer.pieces(left + 1):
        if len(piece) > left:
            raise PullError(
                cannot,
                f"the server sent more than the {file.size_bytes} bytes of {file.path}",
                "check the endpoint and the proxy, or try again later",
            )
        part.append(piece)
        meter.add(len(piece))
        left -= len(piece)
    if left:
        raise ConnectionCut(f"{file.path} ended {left} bytes early")


def _restart(part: PartialDownload, meter: TransferMeter) -> None:
    meter.skip(-part.size_bytes)
    part.cut()
