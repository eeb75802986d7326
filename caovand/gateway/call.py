"""A client's request as it goes to the engine."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caovand.core.gateway.body import Fields
from caovand.core.gateway.naming import Defaults
from caovand.core.gateway.protocol import Form

SHORT_BYTES = 64 << 10
HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
    "te", "trailer", "transfer-encoding", "upgrade", "expect",
})  # fmt: skip
OURS_TO_ENGINE = HOP_BY_HOP | {"host", "content-length", "authorization", "x-api-key"}


@dataclass(frozen=True)
class Call:
    """A client's request.

    `target` is its path with the query, unchanged; `digest` identifies it if the same request is
    sent again; `defaults` are those of its key.
    """

    method: str
    path: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    digest: bytes
    fields: Fields
    form: Form
    defaults: Defaults


def payload(body: bytes) -> bytes | io.BytesIO | None:
    """Send a short body in one write with the header; a long one in pieces, without a copy."""
    return (body if len(body) <= SHORT_BYTES else io.BytesIO(body)) or None


def to_engine(headers: Mapping[str, str]) -> dict[str, Any]:
    """The client's headers that are forwarded to the engine."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    drop = OURS_TO_ENGINE | named
    return {name: value for name, value in headers.items() if name.lower() not in drop}
