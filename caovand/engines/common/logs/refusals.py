"""Find why an engine failed, apart from the requests that it refused before.

A server refuses requests every day, and a client chooses what they contain. Their texts explain a
log to a person, but they are never why a server that served has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from caovand.core.engine.log import FindCause
from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.rows import clients, host, requests, unreached
from caovand.engines.common.logs.signature import MAX_LINE, Signature

SERVING_PHASES = ("http", "serving")
_HOST_ROWS = ("tgi.request", "trt.request")
ROWS = (
    *(row for row in requests.ROWS if row.kind == "consequence"),
    *requests.OF_LLAMA,
    *clients.ROWS,
    *unreached.ROWS,
    *(row for row in host.ROWS if row.id in _HOST_ROWS),
)
FAILED = "request.failed"
"""A request that an exception of the server ended: its answer has the status 500."""
REFUSED = "request.refused"
"""A request that was answered with a status such as 400, in words that no row knows."""
ANSWERED = "request.answered"
"""A request that was answered with an error, of which the log has the status alone."""
NO_KEY = "client.key"
"""The row of a request that was answered with the status 401."""
REFUSED_REQUEST = "of_request"
"""Name of a capture: the line is of a refused request, whatever its signature means elsewhere."""
CLIENT_ROWS = frozenset(row.id for row in (*clients.ROWS, *unreached.ROWS))
"""Messages of a client that did not reach its server, or sent it a wrong request."""
NAMES = frozenset((*(row.id for row in ROWS), FAILED, REFUSED, ANSWERED, requests.NO_PATH))
MAX_PASSES = 64


def without_refusals(find_cause: FindCause, own: Collection[Signature] = ()) -> FindCause:
    """`find_cause` for a daemon: a refused request, by these rows or an engine's `own`, is no cause
    of what comes after it."""
    rows = {row.id: row for row in (*ROWS, *own)}

    def find(
        lines: Sequence[str], phase: str = "serving", *, alive: bool = False
    ) -> Finding | None:
        left = list(lines)
        for _ in range(MAX_PASSES):
            cause = find_cause(left, phase, alive=alive)
            row = rows.get(cause.signature) if cause else None
            if cause is None or row is None or cause.phase not in SERVING_PHASES:
                return cause
            left = ["" if row.pattern.search(line[:MAX_LINE]) else line for line in left]
            left[cause.line - 1] = ""  # a text of several lines matches none of them alone
        return None

    return find
