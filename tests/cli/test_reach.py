"""Sockets that caovanctl trusts: whoever answers there decides what root does next."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.adapters.admission import door
from caovand.cli.common import reach
from caovand.cli.common.errors import CommandError

root_only = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be several users")
STRANGER = 65534


@pytest.fixture
def listening(folder: Path) -> Iterator[Path]:
    """A socket that somebody listens on, in a folder of its own."""
    (folder / "run").mkdir(mode=0o755)
    path = folder / "run" / "status"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        yield path


def refusal(path: Path, *, named: bool = True) -> str:
    with pytest.raises(CommandError) as caught:
        reach.connect(path, 0.05, named=named)
    assert caught.value.status == 4
    return str(caught.value)


@pytest.mark.parametrize("named", [True, False])
def test_our_own_daemon_is_trusted(listening: Path, named: bool) -> None:
    reach.connect(listening, 1.0, named=named).close()


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_folder_where_others_may_write_is_not(listening: Path, mode: int) -> None:
    listening.parent.chmod(mode)
    assert "users other than" in refusal(listening)
    assert f"chmod go-w {listening.parent}" in refusal(listening)


@root_only
def test_a_folder_of_another_user_is_trusted_only_where_it_was_named(listening: Path) -> None:
    os.chown(listening.parent, STRANGER, -1)
    listening.parent.parent.chmod(0o1777)
    assert "it belongs to nobody" in refusal(listening, named=False)
    reach.connect(listening, 1.0, named=True).close()


@root_only
def test_the_service_user_s_folder_in_one_of_root_is_trusted(listening: Path) -> None:
    """As /run/caovan, which systemd makes for the user caovan."""
    os.chown(listening.parent, STRANGER, -1)
    listening.parent.parent.chmod(0o755)
    reach.connect(listening, 1.0, named=False).close()


@root_only
def test_another_user_s_process_is_not_the_daemon(folder: Path) -> None:
    (folder / "run").mkdir(mode=0o755)
    path = folder / "run" / "status"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        os.seteuid(STRANGER)  # whose credentials the socket carries is decided by listen()
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        assert "nobody listens there, the folder is root's" in refusal(path)


def test_a_daemon_that_accepts_nobody_is_not_waited_for(listening: Path) -> None:
    """As one that is stopped: once its queue is full, a plain connect waits for ever."""
    crowd = []
    while True:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        crowd.append(link)
        try:
            link.connect(str(listening))
        except BlockingIOError:
            break
    assert "no connection was accepted within 0 s" in refusal(listening)
    for link in crowd:
        link.close()


def test_a_peer_is_known_by_its_uid() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert door.peer_uid(ours) == os.getuid()
