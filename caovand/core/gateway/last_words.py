"""The last words that a client gets if the gateway's process dies in the middle of its request.

Each is one byte in memory that the gateway shares with its survivor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum

from caovand.core.gateway import protocol
from caovand.core.gateway.protocol import Fault, Form
from caovand.core.problem import Problem

RETRY_S = 2
"""By then the daemon has started the next gateway."""
NOTHING = 0
"""No last words: the client's connection is closed."""
_FAULT = Fault(
    503,
    "gateway_died",
    Problem("answer", "caovan's gateway died", "send it again"),
    RETRY_S,
)


class Stage(Enum):
    """The progress of an answer to the client."""

    UNANSWERED = 0
    CHUNKED = 1
    """Whole events, in chunks of HTTP."""
    UNFRAMED = 2
    """Whole events; the end of the connection is the end of the answer."""


def mark(stage: Stage, form: Form) -> int:
    """The byte for an answer."""
    return 1 + stage.value * len(Form) + list(Form).index(form)


def _words(stage: Stage, form: Form) -> bytes:
    if stage is Stage.UNANSWERED:
        body = json.dumps(protocol.document(form, _FAULT)).encode()
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nServer: caovan\r\nConnection: close\r\n"
            "Content-Type: application/json; charset=utf-8\r\n"
            f"Retry-After: {RETRY_S}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body
    event = protocol.error_event(form, _FAULT)
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event) if stage is Stage.CHUNKED else event


LAST_WORDS: Mapping[int, bytes] = {
    mark(stage, form): _words(stage, form) for stage in Stage for form in Form
}
"""The bytes that complete an answer, by its mark."""
