"""An attack on a daemon by another user: connections, frames, slow reads, waits, and log lines.

As a program, it attacks as an unprivileged user: `strangers.py STATUS_SOCKET PORT SECONDS`.
`attack` runs the program against a daemon and meanwhile measures how the daemon serves its owner.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

if __name__ != "__main__":
    from caovand.cli.common.client import DaemonClient
    from tests.daemon_process import Daemon
    from tests.patience import PATIENCE_S

NOBODY = 65534
BACKSLASH, NESTED = "\\", "'k':\\\"{"
CONNECTIONS = 20_000
EVERY_S = 0.02
REQUEST = b'{"v":1,"id":"1","op":"%s","args":{}}'
ZMTP = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)


@dataclass(frozen=True)
class Figures:
    """The daemon's performance under attack: round trips of `status`, and memory."""

    asked: int
    median_ms: float
    p99_ms: float
    worst_ms: float
    most_mb: float

    def __str__(self) -> str:
        return (
            f"{self.asked} status requests, median {self.median_ms:.1f} ms, p99 {self.p99_ms:.1f}"
            f" ms, worst {self.worst_ms:.0f} ms; at most {self.most_mb:.1f} MB"
        )


def attack(one: Daemon, port: int, seconds: float) -> Figures:
    """Attack for this many seconds, and poll the status meanwhile."""
    assert one.process is not None
    one.folder.chmod(0o755)
    words = [sys.executable, __file__, str(one.folder / "run/status"), str(port), str(seconds)]
    attackers = subprocess.Popen(words, env={"PATH": os.environ["PATH"]})
    took, most_mb = [], 0.0
    with DaemonClient(one.folder / "run") as client:
        while attackers.poll() is None:
            began = time.perf_counter()
            client.ask("status", PATIENCE_S)
            took.append((time.perf_counter() - began) * 1000)
            most_mb = max(most_mb, resident_mb(one.process.pid))
            time.sleep(EVERY_S)
    assert attackers.wait() == 0
    took.sort()
    return Figures(len(took), took[len(took) // 2], took[int(len(took) * 0.99)], took[-1], most_mb)


def resident_mb(pid: int) -> float:
    """A process's resident memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


# -- the attackers ---


def crowd(path: str, port: int) -> None:
    """Open as many connections as possible and keep them open."""
    links = []
    for _ in range(CONNECTIONS):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(0.1)
        with contextlib.suppress(OSError):
            link.connect(path)
            links.append(link)
    for link in links:
        link.close()


def frames(path: str, port: int) -> None:
    """Endless messages, both as libzmq frames and as lines that never end."""
    for first, more in ((ZMTP, b"\3" + (60_000).to_bytes(8, "big") + bytes(60_000)), (b"", b"x")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(5.0)
            with contextlib.suppress(OSError):
                link.connect(path)
                link.sendall(first)
                while True:
                    link.sendall(more * (1 if len(more) > 1 else 65_536))


def slow(path: str, port: int) -> None:
    """Requests that never finish sending, responses that are never read, and waits."""
    links = []
    for op in (b"status", b"status", b"wait", b"wait", b"status", b"status"):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            link.connect(path)
            link.sendall(REQUEST % op + b"\n" if op == b"wait" else (REQUEST % op)[:9])
            links.append(link)
    for byte in REQUEST * 3:
        for link in links:
            with contextlib.suppress(OSError):
                link.send(bytes([byte]))
        time.sleep(0.01)
    for link in links:
        link.close()


def asking(path: str, port: int) -> None:
    """Valid requests, sent as fast as they are answered."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(5.0)
        with contextlib.suppress(OSError):
            link.connect(path)
            link.sendall(REQUEST % b"status" + b"\n")
            link.recv(1 << 16)


def lines(path: str, port: int) -> None:
    """Requests whose paths end up in the engine's log and are hard to parse."""
    for text in (f"'k':'{BACKSLASH * 60}", BACKSLASH * 4000, "a://" * 1000, NESTED * 300):
        with socket.socket(socket.AF_INET) as link, contextlib.suppress(OSError):
            link.settimeout(5.0)
            link.connect(("127.0.0.1", port))
            link.sendall(f"GET /log?{text} HTTP/1.0\r\n\r\n".encode())
            while link.recv(4096):
                pass


def main(path: str, port: int, seconds: float) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    end = time.monotonic() + seconds
    kinds: tuple[Callable[[str, int], None], ...] = (crowd, frames, slow, asking, lines)
    children = []
    for kind in kinds:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(KeyboardInterrupt):
                while time.monotonic() < end:
                    kind(path, port)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
