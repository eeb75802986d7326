"""`caovanctl reset`: discard the degraded plan and make a new one."""

from __future__ import annotations

from caovand.cli.common import waiting
from caovand.cli.common.verb import Group, Verb

VERB = Verb(
    name="reset",
    group=Group.CHANGE,
    effects=True,
    help="discard the degraded plan and make a new one",
    description="Discard the degraded plan and make a new one. The engine restarts only if its plan"
    " changes. If the full plan fails, the ladder degrades it again; `retry --full` would go back.",
    epilog="example: caovanctl reset && caovanctl plan",
    arguments=waiting.arguments,
    run=lambda args: waiting.change(args, "reset"),
)
