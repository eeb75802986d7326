"""`caovanctl restart`: stop the engine and start it again."""

from __future__ import annotations

from caovand.cli.common import waiting

VERB = waiting.change_verb(
    "restart",
    help="stop the engine and start it again",
    description="Stop the engine and start it again. A degraded plan that served is kept.",
    epilog="example: caovanctl restart && curl ...",
)
