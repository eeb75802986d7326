"""Download a model that an engine stores under a name, through a temporary server of that engine.

The server has its own port and runs as the user who owns the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from caovand.adapters.files import trust
from caovand.adapters.model_pull.errors import PullError
from caovand.adapters.model_pull.world import World
from caovand.adapters.network import http
from caovand.adapters.network.free_port import free_port
from caovand.adapters.network.http import Endpoint
from caovand.adapters.system.term_then_kill import term_then_kill
from caovand.core.engine.named_models import NamedPull, PullStep
from caovand.core.printable import one_line

READY_S = 60.0
SILENCE_S = 600.0
"""The server reports a few times a second, but may be silent while it verifies the hash of many
GiB."""
MAX_LINE_BYTES = 64 << 10
MAX_LINES = 1 << 22
END_S = 10.0
RETRY = "check the network and the name, then run the same command again to resume"


def pull(how: NamedPull, program: str, folder: Path, name: str, world: World) -> None:
    """Let `program` download a model into its `folder`. Raises PullError."""
    cannot = f"pull {name}"
    port = free_port()
    with _start_server(how, program, folder, port, cannot) as server:
        server_at = Endpoint("127.0.0.1", port)
        _wait_ready(how, server, server_at, cannot)
        shown = ""
        for step in _read_steps(how, server_at, name, cannot):
            if step.error:
                raise PullError(cannot, one_line(step.error), RETRY)
            if step.total:
                world.progress(step.done, step.total, step.text)
            elif step.text != shown:
                world.say(f"      {step.text}")
            shown = step.text
            if step.complete:
                return
    raise PullError(cannot, "the download ended early", RETRY)


@contextlib.contextmanager
def _start_server(
    how: NamedPull, program: str, folder: Path, port: int, cannot: str
) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryDirectory(prefix="caovan-pull-") as home:  # for its key
        try:
            trust.require(program, None)
            server = subprocess.Popen(
                [program, *how.words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={
                    **trust.own_environ(os.environ),
                    "HOME": home,
                    **how.variables(f"127.0.0.1:{port}", str(folder)),
                },
                cwd="/",
                start_new_session=True,
                **_as_owner(folder, home),
            )
        except (OSError, trust.Distrusted) as problem:
            fact = f"{program} cannot be started: {problem}"
            raise PullError(cannot, fact, "check its permissions and its owner") from None
        with server:
            try:
                yield server
            finally:
                term_then_kill(server, END_S)


def _as_owner(folder: Path, home: str) -> dict[str, Any]:
    """As root, start it as the user who owns the folder, or its nearest existing parent."""
    if os.geteuid() != 0:
        return {}
    owner = next(path for path in (folder, *folder.parents) if path.exists()).stat()
    os.chown(home, owner.st_uid, owner.st_gid, follow_symlinks=False)
    return {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}


def _wait_ready(
    how: NamedPull, server: subprocess.Popen[bytes], server_at: Endpoint, cannot: str
) -> None:
    end_s = time.monotonic() + READY_S
    while server.poll() is None and time.monotonic() < end_s:
        with contextlib.suppress(http.Unanswered):
            if http.call(server_at, how.ready, READY_S).status == 200:
                return
        time.sleep(0.05)
    fact = (
        f"it did not answer within {READY_S:g} s"
        if server.poll() is None
        else f"it exited with status {server.returncode}"
    )
    raise PullError(cannot, f"the server that downloads failed: {fact}", f"try `{how.by_hand}`")


def _read_steps(how: NamedPull, server_at: Endpoint, name: str, cannot: str) -> Iterator[PullStep]:
    try:
        with http.open_connection(server_at, how.path, SILENCE_S) as connection:
            answer = http.ask(connection, server_at, how.path, how.body(name))
            for _ in range(MAX_LINES):
                line = answer.readline(MAX_LINE_BYTES)
                if not line:
                    return
                yield how.read(_parse_object(line))
    except http.Unanswered as problem:
        raise PullError(cannot, f"the download was interrupted: {problem}", RETRY) from None


def _parse_object(line: bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    return event if isinstance(event, dict) else {"error": f"not JSON: {line[:200]!a}"}
