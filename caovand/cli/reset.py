"""`caovanctl reset`: discard the degraded plan and make a new one."""

from __future__ import annotations

from caovand.cli.common import waiting

VERB = waiting.change_verb(
    "reset",
    help="discard the degraded plan and make a new one",
    description="Discard the degraded plan and make a new one. The engine restarts only if its plan"
    " changes. If the full plan fails, the ladder degrades it again; `retry --full` would go back.",
    epilog="example: caovanctl reset && caovanctl plan",
)
