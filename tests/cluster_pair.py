"""A head and a worker: two daemons on two nodes, each with its own folders."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caovand.adapters.network import cluster_key
from caovand.cli.common.client import DaemonClient
from tests.daemon_process import Daemon, daemon
from tests.patience import until
from tests.service_users import Users
from tests.two_nodes import ADDRESSES, TwoNodes, two_nodes

HEAD = f"{ADDRESSES[0]}:7070"


@dataclass(frozen=True)
class Pair:
    """The two daemons and their nodes."""

    nodes: TwoNodes
    head: Daemon
    worker: Daemon

    def complete(self, port: int, **fields: Any) -> dict[str, Any] | None:
        """Request a completion from the engine, on the head's own node; None if it does not
        answer."""
        body = json.dumps({"model": "tiny", "temperature": 0, **fields})
        done = self.nodes.run(
            0, "curl", "-sf", "-m", "120", "-H", "Content-Type: application/json", "-d", body,
            f"http://127.0.0.1:{port}/v1/completions",
        )  # fmt: skip
        return None if done.returncode else dict(json.loads(done.stdout))

    def cluster(self, one: Daemon) -> dict[str, Any]:
        """The cluster section of a daemon's status."""
        with DaemonClient(one.folder / "run") as client:
            return dict(client.ask("cluster"))

    def until_nothing_runs(self, one: Daemon) -> None:
        """Wait until no engine process of this daemon is left."""
        until(lambda: not one.tree(), "an engine that has ended")


def section(role: str, name: str, key: Path, more: str = "") -> str:
    """The [cluster] section of a node's configuration."""
    return (
        f'[cluster]\nrole = "{role}"\nname = "{name}"\nhead = "{HEAD}"\nkey_file = "{key}"\n{more}'
    )


@contextlib.contextmanager
def pair(
    head: str,
    worker: str,
    folder: Path,
    more: str = "",
    environ: dict[str, str] | None = None,
    heads_environ: dict[str, str] | None = None,
    heads_more: str = "",
    found_out: Path | None = None,
    users: Users | None = None,
) -> Iterator[Pair]:
    """Start both daemons with these configurations and a shared key.

    `more` is added to the worker's section, `environ` to its environment; `heads_more` and
    `heads_environ` are the head's. `found_out` is as in `daemon`. With `users`, each daemon runs as
    the service's user and its engines as the engine user.
    """
    key = folder / "cluster.key"
    if not key.exists():
        cluster_key.make(key, "")
    with two_nodes() as nodes, contextlib.ExitStack() as stack:
        rights: tuple[str, ...] = ()
        owner, caches = None, [dict[str, str]()] * 2
        if users is not None:
            rights, owner = users.daemons_rights(), users.daemon.pw_uid
            os.chown(key, owner, -1)
            caches = [users.environ(stack.enter_context(users.cache())) for _ in caches]
        its, others = ((*nodes.wrapper(node), *rights) for node in (0, 1))
        first = f"{head}\n{section('head', 'n1', key, heads_more)}"
        second = f"{worker}\n{section('worker', 'n2', key, more)}"
        with (
            daemon(first, {**caches[0], **(heads_environ or {})}, its, found_out, owner) as one,
            daemon(second, {**caches[1], **(environ or {})}, others, found_out, owner) as other,
        ):
            yield Pair(nodes, one, other)
