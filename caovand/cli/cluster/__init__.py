"""`caovanctl cluster`: several machines that serve one model; each subcommand is a file here."""

from __future__ import annotations

from caovand.cli.common.verb import Group, Verb

EPILOG = """\
examples:
  sudo caovanctl cluster init                  on the head: creates the key and [cluster] section
  sudo caovanctl cluster join 10.0.0.1:7070    on each worker, once the key is copied there
  caovanctl cluster check                      what differs between the nodes, and the fix
"""
VERB = Verb(
    name="cluster",
    group=Group.SETUP,
    help="let several machines serve one model, and list them",
    epilog=EPILOG,
    run=None,
    package=__name__,
)
