"""A daemon in a thread, and caovanctl run against it."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from caovand.cli.main import main
from tests.cli.fake_daemon import FakeDaemon


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: socket paths have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="caovan-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def daemon(folder: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(folder)
    yield daemon
    daemon.stop()


class Said:
    """What caovanctl printed and exited with."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Ctl = Callable[..., Said]


@pytest.fixture
def ctl(folder: Path) -> Ctl:
    """Run caovanctl against the sockets in `folder`."""

    def run(*words: str) -> Said:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(["--runtime", str(folder), *words])
            except SystemExit as end:
                code = int(end.code or 0)
        return Said(code, out.getvalue(), err.getvalue())

    return run
