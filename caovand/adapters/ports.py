"""Who listens on a TCP port, from /proc/net: vLLM 0.21 shares a port silently (SO_REUSEPORT)."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass

from caovand.core import limits

LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """A listening socket; `pid` and `name` are None where we may not read whose it is."""

    address: str
    port: int
    uid: int
    inode: int
    pid: int | None = None
    name: str | None = None

    def __str__(self) -> str:
        who = f"{self.name} (pid {self.pid})" if self.pid else "a process that cannot be read"
        return f"{who} of uid {self.uid} on {self.address}:{self.port}"


def listeners(port: int) -> list[Listener]:
    """Every socket that listens on `port`, on any address."""
    found: list[Listener] = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with limits.absent(), open(table, encoding="ascii") as file:
            found.extend(parse(file.read().splitlines()[1:], port))
    if not found:
        return []
    owners = _owners({listener.inode for listener in found})
    return [
        Listener(item.address, port, item.uid, item.inode, *owners.get(item.inode, (None, None)))
        for item in found
    ]


def parse(rows: Iterable[str], port: int) -> list[Listener]:
    """The rows of /proc/net/tcp or tcp6 that listen on `port`."""
    found = []
    for row in rows:
        fields = row.split()
        host, _, number = fields[1].partition(":")
        if fields[3] == LISTEN and int(number, 16) == port:
            found.append(Listener(_address(host), port, int(fields[7]), int(fields[9])))
    return found


def _address(text: str) -> str:
    # The kernel prints 32-bit words in host byte order.
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def _owners(inodes: set[int]) -> dict[int, tuple[int, str]]:
    owners: dict[int, tuple[int, str]] = {}
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with limits.absent():
            for descriptor in os.listdir(f"/proc/{name}/fd"):
                with limits.absent():
                    inode = wanted.get(os.readlink(f"/proc/{name}/fd/{descriptor}"))
                    if inode is not None:
                        with open(f"/proc/{name}/comm", encoding="utf-8", errors="replace") as file:
                            owners[inode] = (int(name), file.read().strip())
    return owners
