"""`caovanctl key`: manage keys of the gateway's clients; each subcommand is a file here."""

from __future__ import annotations

from caovand.cli.common.verb import Group, Verb

EPILOG = """\
examples:
  caovanctl key add alice --rpm 60                   prints the key, only this once
  caovanctl key add batch --band background --tokens-per-day 2000000
  caovanctl key add agent --reasoning-effort high --max-tokens 32768
  caovanctl key list                                 the keys and the daily usage of each
  caovanctl key revoke alice                         from now on
"""
VERB = Verb(
    name="key",
    group=Group.CHANGE,
    help="add, list and revoke the keys of the gateway's clients",
    epilog=EPILOG,
    run=None,
    package=__name__,
)
