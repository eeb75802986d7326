"""The files of one incident, as the daemon sends them: in pieces."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from caovand.cli.client import Client


def fetch(client: Client, number: int, name: str) -> tuple[Mapping[str, int], bytes]:
    """A file of an incident, and the names and sizes of all of its files."""
    parts: list[bytes] = []
    offset: int | None = 0
    while offset is not None:
        answer = client.ask("incident", number=number, file=name, offset=offset)
        parts.append(base64.b64decode(answer["data"]))
        offset = answer["next"]
    return answer["files"], b"".join(parts)
