"""A head and a worker: two daemons on two nodes, each with folders of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caovand.adapters.network import cluster_key
from caovand.cli.common.client import Client
from tests.daemon_process import Daemon, daemon
from tests.patience import until
from tests.two_nodes import ADDRESSES, TwoNodes, two_nodes

HEAD = f"{ADDRESSES[0]}:7070"


@dataclass(frozen=True)
class Pair:
    """The two daemons, and the nodes that they run on."""

    nodes: TwoNodes
    head: Daemon
    worker: Daemon

    def complete(self, port: int, **fields: Any) -> dict[str, Any] | None:
        """Ask the engine for a completion, on the head's own node; None without an answer."""
        body = json.dumps({"model": "tiny", "temperature": 0, **fields})
        done = self.nodes.run(
            0, "curl", "-sf", "-m", "120", "-H", "Content-Type: application/json", "-d", body,
            f"http://127.0.0.1:{port}/v1/completions",
        )  # fmt: skip
        return None if done.returncode else dict(json.loads(done.stdout))

    def cluster(self, one: Daemon) -> dict[str, Any]:
        """What a daemon says of the cluster."""
        with Client(one.folder / "run") as client:
            return dict(client.ask("cluster"))

    def until_nothing_runs(self, one: Daemon) -> None:
        """Wait until no process of any engine of this daemon is left."""
        until(lambda: not one.tree(), "an engine that has ended")


def section(role: str, name: str, key: Path, more: str = "") -> str:
    """The section [cluster] of a node."""
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
) -> Iterator[Pair]:
    """Both daemons, started with these configurations and a key of their own.

    `more` is added to the worker's section, `environ` to its environment; those of the head are
    `heads_more` and `heads_environ`. `found_out` is as in `daemon`.
    """
    key = folder / "cluster.key"
    if not key.exists():
        cluster_key.make(key, "")
    with two_nodes() as nodes:
        first = f"{head}\n{section('head', 'n1', key, heads_more)}"
        second = f"{worker}\n{section('worker', 'n2', key, more)}"
        with (
            daemon(first, heads_environ, nodes.wrapper(0), found_out) as one,
            daemon(second, environ, nodes.wrapper(1), found_out) as other,
        ):
            yield Pair(nodes, one, other)
