"""Simulates systemd during a daemon restart: stores the sockets it receives, and passes them on."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.daemon_process import Daemon

PASS = """
import fcntl, os, sys
names, *fds = sys.argv[1].split(",")
fds = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in fds]
for place, fd in enumerate(fds, 3):
    os.dup2(fd, place)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=names)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class KeptSockets:
    """The sockets that the daemon's notifications stored, by name; `environ` is for the daemon."""

    def __init__(self, folder: Path) -> None:
        self.kept: dict[str, int] = {}
        self.environ = {"NOTIFY_SOCKET": str(folder / "systemd")}
        self._heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._heard.bind(self.environ["NOTIFY_SOCKET"])
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            text, descriptors, _, _ = socket.recv_fds(self._heard, 4096, 1)
            if not text:
                return
            fields = dict(line.split("=", 1) for line in text.decode().split("\n"))
            name = fields.get("FDNAME", "")
            if "FDSTOREREMOVE" in fields and name in self.kept:
                os.close(self.kept.pop(name))
            if "FDSTORE" in fields:
                self.kept[name] = descriptors[0]

    def restart(self, one: Daemon) -> None:
        """Start a killed daemon with the sockets it had stored."""
        one.pass_fds = tuple(self.kept.values())
        given = ",".join((":".join(self.kept), *map(str, one.pass_fds)))
        one.wrapper = (sys.executable, "-c", PASS, given)
        one.start()

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.environ["NOTIFY_SOCKET"])
        self._thread.join()
        for descriptor in self.kept.values():
            os.close(descriptor)
        self._heard.close()


@contextlib.contextmanager
def kept_sockets(folder: Path) -> Iterator[KeptSockets]:
    """Run a simulated systemd, with its socket in `folder`."""
    made = KeptSockets(folder)
    try:
        yield made
    finally:
        made.close()
