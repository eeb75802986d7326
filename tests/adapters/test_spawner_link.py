"""Answers of the spawner that come late: none is taken for the next, and nothing runs unwatched."""

from __future__ import annotations

import errno
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from caovand.adapters.spawner_link import SpawnerLink
from tests.patience import eventually

START = {"op": "start"}
SIGNAL = {"op": "signal", "signal": 9}


class Stub:
    """A spawner's end of the socket that answers when the test says so."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link = SpawnerLink(ours, answer_s=0.01)

    def asked(self) -> Any:
        """The next message."""
        self.theirs.settimeout(60)
        return json.loads(self.theirs.recv(1000))

    def answer(self, **what: Any) -> None:
        """Answer the oldest message."""
        self.theirs.send(json.dumps(what).encode())


@pytest.fixture
def stub() -> Iterator[Stub]:
    """A link, and the other end of it."""
    one = Stub()
    with one.theirs:
        yield one
        one.link.close()


def test_a_late_answer_is_not_taken_for_the_next(stub: Stub) -> None:
    for _ in range(2):  # the second message is not even sent
        with pytest.raises(TimeoutError):
            stub.link.ask(SIGNAL, [])
    stub.answer(errno=errno.EPERM)
    stub.answer(errno=errno.ESRCH)
    with pytest.raises(ProcessLookupError):
        stub.link.ask(SIGNAL, [])


def test_what_started_late_is_killed_at_once_and_reaped(stub: Stub) -> None:
    with pytest.raises(TimeoutError):
        stub.link.ask(START, [])
    assert stub.asked() == START
    late = subprocess.Popen(["/bin/sleep", "1000"])
    stub.answer(pid=late.pid)
    assert stub.asked() == {"op": "kill", "pid": late.pid}  # though nothing else was asked
    late.kill()
    stub.answer()
    eventually(lambda: not stub.link._collecting)
    stub.answer(pid=1)
    assert stub.link.ask(START, []) == {"pid": 1}
    eventually(lambda: stub.link._abandoned == set() or stub.link._reap())
    late.returncode = -signal.SIGKILL  # the link reaped it


def test_the_end_of_the_link_ends_the_wait_for_late_answers(stub: Stub) -> None:
    with pytest.raises(TimeoutError):
        stub.link.ask(START, [])
    stub.link.close()
    eventually(lambda: not stub.link._collecting)
    stub.theirs.settimeout(60)
    assert stub.asked() == START
    assert stub.theirs.recv(1000) == b""


def test_what_the_spawner_refuses_and_its_end_are_errors(stub: Stub) -> None:
    stub.answer(refused="it asks for nothing that is done here")
    with pytest.raises(OSError, match="the spawner refuses: it asks for nothing"):
        stub.link.ask(SIGNAL, [])
    stub.theirs.close()
    with pytest.raises(ConnectionError):
        stub.link.ask(SIGNAL, [])
