"""The verbs run against the daemon of `tests/cli`."""

from tests.cli.conftest import ctl, daemon, folder

__all__ = ["ctl", "daemon", "folder"]
