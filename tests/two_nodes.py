"""Machines as network namespaces, joined by a bridge whose link can be cut. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

ADDRESSES = ("10.77.0.1", "10.77.0.2", "10.77.0.3")


@dataclass(frozen=True)
class TwoNodes:
    """The namespaces `names`, each with eth0 at one of ADDRESSES, and the bridge `switch` between
    them."""

    names: tuple[str, ...]
    switch: str

    def wrapper(self, node: int) -> tuple[str, ...]:
        """The command prefix that runs a command on this node, counted from 0."""
        return ("ip", "netns", "exec", self.names[node])

    def run(self, node: int, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a node."""
        return subprocess.run(
            [*self.wrapper(node), *words], capture_output=True, text=True, check=False
        )

    def cut(self) -> None:
        """Block all traffic between the nodes; both interfaces keep their carrier."""
        _ip("-n", self.switch, "link", "set", "port1", "nomaster")

    def join(self) -> None:
        """Let all traffic pass again."""
        _ip("-n", self.switch, "link", "set", "port1", "master", "switch")

    def cut_for(self, seconds: float) -> None:
        """Block all traffic for this long, as the fault under test."""
        self.cut()
        time.sleep(seconds)
        self.join()

    def stay_joined_for(self, seconds: float) -> None:
        """Wait this long, for effects of a cut that show up late."""
        time.sleep(seconds)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def namespaces(*names: str) -> Iterator[None]:
    """Create network namespaces with these names and remove them at the end; skip if that is not
    possible."""
    if os.getuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root and ip (Debian's iproute2) to make network namespaces")
    made: list[str] = []
    try:
        for name in names:
            done = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True)
            if done.returncode:
                pytest.skip(f"this sandbox makes no network namespaces: {done.stderr.decode()}")
            made.append(name)
        yield
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextlib.contextmanager
def two_nodes(count: int = 2) -> Iterator[TwoNodes]:
    """Create two nodes, or up to as many as there are addresses, and remove them at the end; skip
    if namespaces cannot be created."""
    base = f"caovan-{os.getpid()}"
    nodes = TwoNodes(tuple(f"{base}-{place}" for place in range(1, count + 1)), f"{base}-s")
    with namespaces(*nodes.names, nodes.switch):
        _ip("-n", nodes.switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", nodes.switch, "link", "set", "switch", "up")
        for place, name in enumerate(nodes.names, 1):
            port = f"port{place}"
            _ip("-n", nodes.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0",
                "netns", name)  # fmt: skip
            _ip("-n", nodes.switch, "link", "set", port, "master", "switch", "up")
            _ip("-n", name, "addr", "add", f"{ADDRESSES[place - 1]}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", name, "link", "set", link, "up")
        yield nodes
