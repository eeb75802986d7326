"""`caovanctl start`: start the engine, even from FAILED or HOLD."""

from __future__ import annotations

from caovand.cli.common import waiting

VERB = waiting.change_verb(
    "start",
    help="start the engine, also from FAILED or HOLD",
    epilog="example: caovanctl start --timeout 900",
)
