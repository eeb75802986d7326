"""The client with which verbs talk to the daemon, and their exit statuses."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import zmq

from caovand.adapters.files.directories import directories
from caovand.cli.common import reach
from caovand.cli.common.errors import CommandError, Exit
from caovand.core.reporting import wire
from caovand.core.reporting.wire import Notice, Reply, Request

ANSWER_S = 20.0
LOOK_S = 1.0
AGAIN_S = 0.05
"""Delay before retrying a daemon that refused us because it has too many connections."""


def runtime_directory(folder: Path | None) -> Path:
    """The folder of the daemon's sockets: as named, else our own daemon's, else the system's."""
    if folder is not None:
        return folder
    own = directories(os.environ, os.getuid()).runtime
    if os.environ.get("RUNTIME_DIRECTORY"):
        return own
    with contextlib.suppress(OSError):
        # In /tmp, anyone may have created a folder of this name.
        if (own / "status").lstat().st_uid == os.getuid() == own.stat().st_uid:
            return own
    return reach.SYSTEM_RUNTIME


class DaemonClient:
    """A connection to the daemon whose sockets are in `folder`.

    `named` says that the operator chose that folder; any other folder must be owned by root or by
    the user.
    """

    def __init__(self, folder: Path, *, named: bool = True) -> None:
        self._folder, self._named = folder, named
        self._context = zmq.Context()

    def __enter__(self) -> DaemonClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def ask(self, op: str, answer_s: float = ANSWER_S, **args: Any) -> Mapping[str, Any]:
        """Send one request and return its result; raises CommandError."""
        request = Request(op, args, uuid.uuid4().hex)
        path = self._folder / "control"
        if op not in wire.OPEN_TO_ALL:
            reply = self._ask(path, request, answer_s)
        elif os.access(path, os.W_OK, effective_ids=True):
            reply = self._ask_by_line(path, request, answer_s)
        else:
            reply = self._ask_by_line(self._folder / "status", request, answer_s)
        if reply is None:
            raise CommandError(
                Exit.NOT_REACHABLE,
                f"cannot {op}: caovand did not answer within {answer_s:.0f} s",
                "check `systemctl status caovan` and `journalctl -u caovan`",
            )
        return _result(reply)

    def _ask(self, path: Path, request: Request, answer_s: float) -> Reply | None:
        """Send a request over ZeroMQ; None if no reply came in time."""
        self._check(path)
        link = self._context.socket(zmq.DEALER)
        try:
            link.setsockopt(zmq.LINGER, 0)
            link.connect(f"ipc://{path}")
            link.send(wire.encode_request(request))
            deadline = time.monotonic() + answer_s
            while (left_s := deadline - time.monotonic()) > 0:
                if not link.poll(int(min(left_s, LOOK_S) * 1000) + 1):
                    self._check(path)  # a daemon that has exited since then never replies
                    continue
                reply = wire.decode_reply(link.recv())
                if reply.id == request.id:
                    return reply
        finally:
            link.close()
        return None

    def _ask_by_line(self, path: Path, request: Request, answer_s: float) -> Reply | None:
        """Send a request as one line and read the reply; None if none came in time."""
        deadline = time.monotonic() + answer_s
        while (left_s := deadline - time.monotonic()) > 0:
            line, reason = self._line(path, request, left_s)
            if line.endswith(b"\n"):
                return wire.decode_reply(line[:-1], wire.MAX_LINE_BYTES)
            if line:
                raise CommandError(
                    Exit.NOT_REACHABLE,
                    f"cannot {request.op}: no answer from caovand at {path}: {reason}",
                    "try again in a moment",
                )
            time.sleep(min(AGAIN_S, left_s))
        return None

    def _line(self, path: Path, request: Request, answer_s: float) -> tuple[bytes, str]:
        """The reply on one connection (without line end if it ended early), and why the connection
        ended."""
        deadline = time.monotonic() + answer_s
        received, reason = bytearray(), "the daemon closed the connection"
        with reach.connect(path, answer_s, named=self._named) as link:
            try:
                # If the daemon refuses us, its reply is readable even after a failed write.
                with contextlib.suppress(BrokenPipeError):
                    link.sendall(wire.encode_request(request) + b"\n")
                while b"\n" not in received and len(received) <= wire.MAX_LINE_BYTES:
                    data = link.recv(1 << 16)
                    if not data or time.monotonic() > deadline:
                        break
                    received += data
            except OSError as problem:
                reason = problem.strerror or reason
        line, end, _ = bytes(received).partition(b"\n")
        return line + end, reason

    def _check(self, path: Path) -> None:
        """Raise CommandError unless a trusted process listens there; ZeroMQ itself would wait."""
        reach.connect(path, LOOK_S, named=self._named).close()

    def notices(self, since: int) -> Iterator[Notice]:
        """Yield the events after sequence number `since`, then new ones, forever."""
        path = self._folder / "events"
        self._check(path)
        link = self._context.socket(zmq.SUB)
        link.setsockopt(zmq.SUBSCRIBE, b"")
        link.connect(f"ipc://{path}")
        while True:
            # The backlog closes the gap until the subscription takes effect, and any later loss.
            for entry in self.ask("events", since=since)["events"]:
                since = entry["seq"]
                yield wire.decode_notice(wire.encode_notice(_notice(entry)))
            if link.poll(1000):
                notice = wire.decode_notice(link.recv())
                if notice.seq == since + 1:
                    since = notice.seq
                    yield notice


def _notice(entry: Mapping[str, Any]) -> Notice:
    return Notice(entry["seq"], entry["at"], entry["kind"], entry["text"], entry["data"])


def _result(reply: Reply) -> Mapping[str, Any]:
    if reply.result is not None:
        return reply.result
    status = Exit.NOT_PERMITTED if reply.code == "not-permitted" else Exit.FAILED
    raise CommandError(status, reply.message, reply.hint, reply.code)


def ask(args: argparse.Namespace, op: str, **fields: Any) -> Mapping[str, Any]:
    """Send one request to the daemon named on the command line; raises CommandError."""
    with connect(args) as client:
        return client.ask(op, **fields)


def connect(args: argparse.Namespace) -> DaemonClient:
    """A client for the daemon named on the command line."""
    return client_for(args.runtime)


def client_for(runtime: Path | None) -> DaemonClient:
    """A client for the daemon in the folder that the operator named; None for the default."""
    named = runtime is not None or bool(os.environ.get("RUNTIME_DIRECTORY"))
    return DaemonClient(runtime_directory(runtime), named=named)
