"""`caovanctl start`: start the engine, even from FAILED or HOLD."""

from __future__ import annotations

from caovand.cli.common import waiting
from caovand.cli.common.verb import Group, Verb

VERB = Verb(
    name="start",
    group=Group.CHANGE,
    effects=True,
    help="start the engine, also from FAILED or HOLD",
    epilog="example: caovanctl start --timeout 900",
    arguments=waiting.arguments,
    run=lambda args: waiting.change(args, "start"),
)
