"""An unresponsive or ended spawner is given up: nothing waits for it a second time."""

from __future__ import annotations

import errno
import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from caovand.adapters.privileges.link import SpawnerEnded, SpawnerLink
from tests.patience import eventually

START = {"op": "start"}
SIGNAL = {"op": "signal", "signal": 9}


class Stub:
    """A spawner's end of the socket that answers when the test says so."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.silent = 0
        self.link = SpawnerLink(self.ours, self.falls_silent, answer_s=0.01)

    def falls_silent(self) -> None:
        """It was given up."""
        self.silent += 1

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


def test_one_that_does_not_answer_is_given_up_after_one_wait(stub: Stub) -> None:
    with pytest.raises(SpawnerEnded, match=r"^the engine spawner did not answer for 0.01 s$"):
        stub.link.ask(START, [])
    assert stub.asked() == START
    assert stub.theirs.recv(1000) == b"", "it learns that nobody waits any more"
    stub.ours.settimeout(None)  # a second wait would never end
    with pytest.raises(SpawnerEnded, match="did not answer"):
        stub.link.ask(SIGNAL, [])
    assert stub.silent == 1
    stub.link.abandon(1)  # no error: nothing can be done


def test_all_who_ask_meanwhile_wait_for_that_one_time(stub: Stub) -> None:
    why: list[str] = []

    def ask() -> None:
        try:
            stub.link.ask(SIGNAL, [])
        except SpawnerEnded as problem:
            why.append(str(problem))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(why)) == 1
    assert len(why) == 20
    assert stub.silent == 1


def test_a_program_that_nobody_can_watch_is_killed_and_reaped(stub: Stub) -> None:
    stub.ours.settimeout(60)
    sleeper = subprocess.Popen(["/bin/sleep", "1000"])
    stub.answer()
    stub.link.abandon(sleeper.pid)
    assert stub.asked() == {"op": "kill", "pid": sleeper.pid}
    sleeper.kill()
    eventually(lambda: stub.link._abandoned == set() or stub.link._reap())
    sleeper.returncode = -signal.SIGKILL  # the link reaped it


def test_what_the_spawner_refuses_and_its_end_are_errors(stub: Stub) -> None:
    stub.answer(refused="the spawner has no such operation")
    with pytest.raises(OSError, match="the engine spawner refuses: the spawner has no such"):
        stub.link.ask(SIGNAL, [])
    stub.answer(errno=errno.ESRCH)
    with pytest.raises(ProcessLookupError):
        stub.link.ask(SIGNAL, [])
    stub.theirs.close()
    for _ in range(2):
        with pytest.raises(SpawnerEnded, match=r"^the engine spawner has exited$"):
            stub.link.ask(SIGNAL, [])
    assert stub.silent == 0


@pytest.mark.parametrize("too_much", [{"op": "x" * (1 << 22)}])
def test_a_message_that_cannot_be_sent_costs_nothing_but_itself(
    stub: Stub, too_much: dict[str, str]
) -> None:
    with pytest.raises(OSError, match="too long") as found:
        stub.link.ask(too_much, [])
    assert not isinstance(found.value, SpawnerEnded)
    stub.answer(pid=1)
    assert stub.link.ask(START, []) == {"pid": 1}
