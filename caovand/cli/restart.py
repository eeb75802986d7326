"""`caovanctl restart`: stop the engine and start it again."""

from __future__ import annotations

from caovand.cli.common import waiting
from caovand.cli.common.verb import Group, Verb

VERB = Verb(
    name="restart",
    group=Group.CHANGE,
    effects=True,
    help="stop the engine and start it again",
    description="Stop the engine and start it again. A degraded plan that served is kept.",
    epilog="example: caovanctl restart && curl ...",
    arguments=waiting.arguments,
    run=lambda args: waiting.change(args, "restart"),
)
