"""Run pip, uv and Pythons as children that die with us, and watch them while they work."""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from caovand.adapters.files import trust

TICK_S = 1.0
PATH_VARIABLES = frozenset(
    {"PIP_CERT", "PIP_CLIENT_CERT", "PIP_CONFIG_FILE", "PIP_CONSTRAINT", "PIP_FIND_LINKS"}
    | {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "SSL_CERT_FILE", "UV_PYTHON_INSTALL_MIRROR"}
)


@dataclass(frozen=True)
class Finished:
    """The result of a child: its exit code (negative for a signal) and its output."""

    code: int
    output: str


def last_line(output: str, empty: str = "nothing") -> str:
    """Return the last line that a program printed, which most often names the cause."""
    return (output.strip() or empty).splitlines()[-1].strip()


ReportProgress = Callable[[int, int, str], None]
RunCommand = Callable[[Sequence[str], Mapping[str, str], Callable[[], None]], Finished]


@dataclass(frozen=True)
class InstallWorld:
    """The effects of an installation other than on files; tests replace them."""

    run: RunCommand
    free_bytes: Callable[[Path], int]
    now: Callable[[], datetime]
    environ: Mapping[str, str]
    say: Callable[[str], None]
    progress: ReportProgress


def run(command: Sequence[str], env: Mapping[str, str], tick: Callable[[], None]) -> Finished:
    """Run a command to completion, calling `tick` about once a second.

    `env` is added to our own environment; a value of "" removes the variable. The child works in /,
    so that pip, uv and Python find nothing in the caller's folder. It gets SIGKILL when we die
    (setpriv of util-linux), so that a killed installation leaves no pip behind that goes on
    writing; it also inherits every inheritable descriptor, including the lock on the root.
    """
    environ = {**with_absolute_paths(trust.own_environ(os.environ)), **env}
    environ = {key: value for key, value in environ.items() if value or key not in env}
    setpriv = trust.program("setpriv", os.environ)
    wrapper = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
    output: list[bytes] = []
    with subprocess.Popen(
        [*wrapper, *command],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        close_fds=False,
        cwd="/",
    ) as child:
        assert child.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            try:
                while True:
                    if selector.select(TICK_S):
                        data = os.read(child.stdout.fileno(), 65536)
                        if not data:
                            break
                        output.append(data)
                    tick()
            except BaseException:
                child.kill()
                raise
    return Finished(child.returncode, b"".join(output).decode(errors="replace"))


def pip(python: Path) -> list[str]:
    """The command line of this Python's pip."""
    return [str(python), "-I", "-m", "pip", "--disable-pip-version-check"]


def with_absolute_paths(environ: Mapping[str, str]) -> dict[str, str]:
    """Make the paths in pip's and uv's variables absolute.

    They are relative to the caller's folder, but the child works in /. A configuration file that
    merely lies in that folder is ignored.
    """
    absolute = dict(environ)
    for name in PATH_VARIABLES & environ.keys():
        words = (os.path.abspath(w) if os.path.exists(w) else w for w in environ[name].split())
        absolute[name] = " ".join(words)
    return absolute
