"""`caovanctl engine`: install, prove, list and switch the environments that engines run in.

Each subcommand is a file here. They need neither a daemon nor anything beyond the standard library;
results go to stdout, progress to stderr. From a bare checkout: python3 -m caovand.cli.engine
install --build cpu
"""

from __future__ import annotations

from collections.abc import Sequence

from caovand.cli.common.printing import escaping_output
from caovand.cli.common.verb import Group, Parser, Verb, fill

EPILOG = """\
examples:
  sudo caovanctl engine install                      the build this machine can use
  sudo caovanctl engine install 0.21.0               another version; the old one is kept
  sudo caovanctl engine install --kind llamacpp      llama.cpp, for models in GGUF files
  sudo caovanctl engine try 0.33.0                   serve with it, compare, keep it or go back
  sudo caovanctl engine rollback                     back to the previous one
  caovanctl engine fetch --build cuda --wheels DIR   on a machine with network, then
  sudo caovanctl engine install --wheels DIR         on one without
After a switch: sudo caovanctl reload
"""
VERB = Verb(
    name="engine",
    group=Group.SETUP,
    help="install, list and switch the environments that engines run in",
    epilog=EPILOG,
    run=None,
    package=__name__,
)


def main(argv: Sequence[str]) -> int:
    """Run a subcommand on its own, without the rest of caovanctl; return its exit status."""
    parser = Parser(prog="caovanctl engine", epilog=EPILOG, formatter_class=VERB.formatter())
    fill(parser, VERB)
    with escaping_output():
        args = parser.parse_args(argv)
        return int(args.run(args))
