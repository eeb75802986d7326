"""Telling systemd: ready, status, watchdog, reloading, stopping. Nothing happens elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping

import sdnotify


class Notifier:
    """Sends to NOTIFY_SOCKET; silent where there is none."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._notifier = sdnotify.SystemdNotifier()
        self._owed: dict[str, str] = {}
        if self._notifier.socket is not None:
            # systemd's queue is short, and nobody reads it while systemd reloads itself.
            self._notifier.socket.setblocking(False)
            self._notifier.debug = True  # tell us what could not be sent
        micros = environ.get("WATCHDOG_USEC", "")
        for_us = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(micros) / 1e6 if micros.isdigit() and for_us else None

    def _send(self, *fields: str) -> None:
        """Send without waiting; READY and STATUS that did not go through go with the next."""
        if self._notifier.socket is None:
            return
        told = self._owed | {name: text for name, _, text in (f.partition("=") for f in fields)}
        # One line a field; sdnotify encodes as Latin-1.
        text = "\n".join(f"{name}={value}".replace("\n", "; ") for name, value in told.items())
        self._owed = {}
        try:
            self._notifier.notify(text.encode("utf-8", "replace").decode("latin-1"))
        except OSError:
            self._owed = {name: told[name] for name in ("READY", "STATUS") if name in told}

    def ready(self, status: str) -> None:
        """Configuration is valid and the sockets are bound."""
        self._send("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={text}")

    def alive(self) -> None:
        """Feed the watchdog; called from the loop that does the work, and only from there."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` ends this."""
        self._send("RELOADING=1")

    def extend(self, within_s: float) -> None:
        """An operator's stop is under way, perhaps that of the unit's ExecStop."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}")

    def stopping(self, within_s: float) -> None:
        """The daemon is ending and needs up to `within_s` more seconds."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}")
