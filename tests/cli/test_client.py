"""Requests to a daemon that refuses connections are retried, and truncated replies are reported."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from caovand.cli.common.client import DaemonClient
from caovand.cli.common.errors import CommandError, Exit
from caovand.core.reporting import wire
from caovand.core.reporting.wire import Reply
from tests.patience import LIMIT_S


@contextmanager
def daemon(folder: Path, answers: Sequence[bytes]) -> Iterator[None]:
    """What stands at the control socket: each connection gets the next of these, and its end."""
    folder.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "control"))
        listener.listen()
        listener.settimeout(LIMIT_S)

        def serve() -> None:
            for answer in answers:
                link, _ = listener.accept()
                with link:
                    request = wire.decode_request(link.recv(4096).rstrip())
                    link.sendall(answer.replace(b"ID", request.id.encode()))

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


ANSWER = wire.encode_reply(Reply("ID", {"version": "1"})) + b"\n"


def test_who_is_turned_away_asks_again(tmp_path: Path) -> None:
    with daemon(tmp_path, [b"", b"", ANSWER]), DaemonClient(tmp_path) as client:
        assert client.ask("version") == {"version": "1"}


def test_an_answer_that_ends_early_is_no_answer(tmp_path: Path) -> None:
    with (
        daemon(tmp_path, [ANSWER[:-5]]),
        DaemonClient(tmp_path) as client,
        pytest.raises(CommandError, match="closed the connection") as found,
    ):
        client.ask("version")
    assert found.value.status is Exit.NOT_REACHABLE


def test_a_daemon_that_never_lets_us_in_did_not_answer(tmp_path: Path) -> None:
    closing = threading.Event()
    tmp_path.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control"))
        listener.listen()
        listener.settimeout(0.05)

        def turn_away() -> None:
            while not closing.is_set():
                try:
                    listener.accept()[0].close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=turn_away)
        thread.start()
        with (
            DaemonClient(tmp_path) as client,
            pytest.raises(CommandError, match="did not answer within"),
        ):
            client.ask("version", answer_s=0.3)
        closing.set()
        thread.join()
