"""`caovanctl model`: download, list, check and remove models; each subcommand is a file here."""

from __future__ import annotations

from caovand.cli.common.verb import Group, Verb

EPILOG = """\
examples:
  sudo caovanctl model pull Qwen/Qwen3-8B-AWQ        into /var/lib/caovan/models
  caovanctl model pull Qwen/Qwen3-8B-AWQ --to DIR    into your own folder, without root
  sudo caovanctl model pull Qwen/Qwen3-8B-AWQ --from modelscope
  caovanctl model verify Qwen/Qwen3-8B-AWQ
Then set [model] path to the folder it names, and run sudo caovanctl reload.
"""
VERB = Verb(
    name="model",
    group=Group.SETUP,
    help="download, list, check and remove models",
    epilog=EPILOG,
    run=None,
    package=__name__,
)
