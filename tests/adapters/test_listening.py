"""The daemon's listening sockets across its restarts, kept by systemd."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.servers import listening
from caovand.adapters.servers.listening import Listeners, listen_on
from caovand.adapters.system.notify import Notifier
from tests.ports import free_port


class FakeNotifier(Notifier):
    """Notes what systemd is to keep."""

    def __init__(self) -> None:
        super().__init__({})
        self.told: list[tuple[str, str]] = []

    def keep(self, name: str, descriptor: int) -> None:
        self.told.append(("keep", name))

    def forget(self, name: str) -> None:
        self.told.append(("forget", name))


def passed(monkeypatch: pytest.MonkeyPatch, first: int, count: int, **more: str) -> Any:
    """A daemon's sockets where systemd passes `count` descriptors from `first` on."""
    monkeypatch.setattr(listening, "FIRST_FD", first)
    environ = {"LISTEN_FDS": str(count), "LISTEN_PID": str(os.getpid()), **more}
    return Listeners(environ, FakeNotifier())


def test_a_new_socket_is_kept_by_systemd_instead_of_an_older_one() -> None:
    notifier = FakeNotifier()
    Listeners({}, notifier).listen("page", f"127.0.0.1:{free_port()}", 5).close()
    assert notifier.told == [("forget", "page"), ("keep", "page")]


def test_a_client_that_came_between_two_daemons_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    listen = f"127.0.0.1:{free_port()}"
    before = listen_on(listen, 5)
    with socket.create_connection(before.getsockname()) as early:
        listeners = passed(monkeypatch, before.detach(), 1, LISTEN_FDNAMES="gateway")
        with listeners.listen("gateway", listen, 5) as now:
            connection, address = now.accept()
            connection.close()
            assert address == early.getsockname()
            assert not now.get_inheritable()
    assert listeners._notifier.told == []


def test_a_socket_of_an_address_that_is_no_longer_configured_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = listen_on(f"127.0.0.1:{free_port()}", 5).detach()
    listeners = passed(monkeypatch, first, 1, LISTEN_FDNAMES="gateway")
    port = free_port()
    with listeners.listen("gateway", f"127.0.0.1:{port}", 5) as now:
        assert now.getsockname()[1] == port
        assert listeners._notifier.told == [("forget", "gateway"), ("keep", "gateway")]
    again = listen_on(f"127.0.0.1:{free_port()}", 5)
    address = again.getsockname()
    listeners = passed(monkeypatch, again.detach(), 1, LISTEN_FDNAMES="page")
    listeners.forget("page")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_what_is_not_for_us_or_no_socket_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    passed(monkeypatch, descriptor, 1, LISTEN_FDNAMES="odd")
    passed(monkeypatch, descriptor, 1, LISTEN_PID="1", LISTEN_FDNAMES="odd")
    os.close(descriptor)
