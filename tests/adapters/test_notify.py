"""Notifications to systemd, read from a socket like its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.adapters.system.notify import Notifier


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "n"))
        listener.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        yield listener


def told(systemd: socket.socket) -> list[str]:
    return systemd.recv(4096).decode().split("\n")


def test_each_state_is_told_in_systemd_s_words(systemd: socket.socket) -> None:
    notifier = Notifier({})
    notifier.ready("STOPPED")
    assert told(systemd) == ["READY=1", "STATUS=STOPPED"]
    notifier.status("SERVING m on http://h/v1, MTP 3")
    assert told(systemd) == ["STATUS=SERVING m on http://h/v1, MTP 3"]
    notifier.alive()
    assert told(systemd) == ["WATCHDOG=1"]
    notifier.reloading()
    assert told(systemd) == ["RELOADING=1"]
    notifier.stopping(12.5)
    assert told(systemd) == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=12500000"]


@pytest.mark.parametrize("status", ["模型 – ready", "Grüße", "\ud800"])
def test_no_status_keeps_ready_from_arriving(systemd: socket.socket, status: str) -> None:
    Notifier({}).ready(status)
    expected = status.encode("utf-8", "replace").decode()
    assert told(systemd) == ["READY=1", f"STATUS={expected}"]


def test_a_status_of_many_lines_is_one_field(systemd: socket.socket) -> None:
    Notifier({}).status("two findings\nMAINPID=1")
    assert told(systemd) == ["STATUS=two findings; MAINPID=1"]


def test_nothing_happens_where_there_is_no_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Notifier({}).ready("STOPPED")


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_fed_where_it_is_ours(
    environ: dict[str, str], seconds: float | None
) -> None:
    assert Notifier(environ).watchdog_s == seconds


def test_a_systemd_that_does_not_read_holds_nobody_up_and_misses_no_state(
    systemd: socket.socket,
) -> None:
    notifier = Notifier({})
    for _ in range(2000):
        notifier.alive()
    notifier.status("SERVING")
    systemd.setblocking(False)
    while True:
        try:
            assert told(systemd) == ["WATCHDOG=1"]
        except BlockingIOError:
            break
    notifier.alive()
    assert told(systemd) == ["STATUS=SERVING", "WATCHDOG=1"]


def test_a_socket_is_kept_by_systemd_until_it_is_forgotten(systemd: socket.socket) -> None:
    with socket.socket() as ours:
        Notifier({}).keep("gateway", ours.fileno())
        text, (kept,), _, _ = socket.recv_fds(systemd, 4096, 1)
        assert text == b"FDSTORE=1\nFDNAME=gateway"
        assert os.path.sameopenfile(kept, ours.fileno())
        os.close(kept)
    Notifier({}).forget("gateway")
    assert told(systemd) == ["FDSTOREREMOVE=1", "FDNAME=gateway"]
