"""Messages to systemd: ready, status, watchdog, reloading, stopping, and sockets that it keeps.

Without systemd they do nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

import sdnotify


class Notifier:
    """Sends to NOTIFY_SOCKET; does nothing without one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._notifier = sdnotify.SystemdNotifier()
        self._owed: dict[str, str] = {}
        if self._notifier.socket is not None:
            # systemd's queue is short, and is not read while systemd reloads itself.
            self._notifier.socket.setblocking(False)
            self._notifier.debug = True  # raise errors of sending
        micros = environ.get("WATCHDOG_USEC", "")
        for_us = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(micros) / 1e6 if micros.isdigit() and for_us else None

    def _send(self, *fields: str) -> None:
        """Send without waiting; a READY or STATUS that failed is sent again with the next."""
        if self._notifier.socket is None:
            return
        values = self._owed | {name: text for name, _, text in (f.partition("=") for f in fields)}
        # One line a field; sdnotify encodes as Latin-1.
        text = "\n".join(f"{name}={value}".replace("\n", "; ") for name, value in values.items())
        self._owed = {}
        try:
            self._notifier.notify(text.encode("utf-8", "replace").decode("latin-1"))
        except OSError:
            self._owed = {name: values[name] for name in ("READY", "STATUS") if name in values}

    def ready(self, status: str) -> None:
        """Report that the configuration is valid and the sockets are bound."""
        self._send("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """Set the status line of `systemctl status`."""
        self._send(f"STATUS={text}")

    def alive(self) -> None:
        """Feed the watchdog; called only from the loop that does the work."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Report that the configuration is being read again, until `ready`."""
        self._send("RELOADING=1")

    def extend(self, within_s: float) -> None:
        """Ask for more time for an operator's stop, perhaps through the unit's ExecStop."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}")

    def stopping(self, within_s: float) -> None:
        """Report that the daemon is ending and needs up to `within_s` more seconds."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}")

    def keep(self, name: str, descriptor: int) -> None:
        """Let systemd keep a copy of a socket, and pass it to the daemon's next process."""
        if self._notifier.socket is not None:
            with contextlib.suppress(OSError):  # without it, clients are refused meanwhile
                text = f"FDSTORE=1\nFDNAME={name}".encode()
                socket.send_fds(self._notifier.socket, [text], [descriptor])

    def forget(self, name: str) -> None:
        """Let systemd close its copies of a socket."""
        self._send("FDSTOREREMOVE=1", f"FDNAME={name}")
