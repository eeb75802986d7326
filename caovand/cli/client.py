"""How verbs talk to the daemon, and what they exit with."""

from __future__ import annotations

import argparse
import errno
import os
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import zmq

from caovand.adapters.directories import directories
from caovand.core import wire
from caovand.core.wire import Notice, Reply, Request

ANSWER_S = 20.0
LOOK_S = 1.0
SYSTEM_RUNTIME = Path("/run/caovan")
OPEN_OPS = frozenset({"status", "version", "wait"})


class Exit(IntEnum):
    """Exit statuses of caovanctl."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_SERVING = 3
    NOT_REACHABLE = 4
    NOT_PERMITTED = 5


class Problem(Exception):
    """What a verb cannot do, the fact and the remedy, and the exit status that tells it."""

    def __init__(self, status: Exit, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(f"{message}\n  {hint}" if hint else message)
        self.status, self.message, self.hint, self.code = status, message, hint, code


def runtime_directory(given: Path | None) -> Path:
    """Where the daemon's sockets are: as told, else our own daemon's, else the system's."""
    if given is not None:
        return given
    own = directories(os.environ, os.getuid()).runtime
    return (
        own if (own / "status").exists() or os.environ.get("RUNTIME_DIRECTORY") else SYSTEM_RUNTIME
    )


class Client:
    """A connection to the daemon whose sockets are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context = zmq.Context()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def ask(self, op: str, answer_s: float = ANSWER_S, **args: Any) -> Mapping[str, Any]:
        """Send one request and return its result; raises Problem."""
        path = self._folder / "control"
        if op in OPEN_OPS and not os.access(path, os.W_OK, effective_ids=True):
            path = self._folder / "status"
        _check(path)
        link = self._context.socket(zmq.DEALER)
        try:
            link.setsockopt(zmq.LINGER, 0)
            link.connect(f"ipc://{path}")
            request = Request(op, args, uuid.uuid4().hex)
            link.send(wire.encode_request(request))
            deadline = time.monotonic() + answer_s
            while (left_s := deadline - time.monotonic()) > 0:
                if not link.poll(int(min(left_s, LOOK_S) * 1000) + 1):
                    _check(path)  # a daemon that has ended meanwhile never answers
                    continue
                reply = wire.decode_reply(link.recv())
                if reply.id == request.id:
                    return _result(reply)
        finally:
            link.close()
        raise Problem(
            Exit.NOT_REACHABLE,
            f"cannot {op}: caovand did not answer within {answer_s:.0f} s",
            "look at `systemctl status caovan` and `journalctl -u caovan`",
        )

    def notices(self, since: int) -> Iterator[Notice]:
        """The events after sequence number `since`, then those to come, for ever."""
        path = self._folder / "events"
        _check(path)
        link = self._context.socket(zmq.SUB)
        link.setsockopt(zmq.SUBSCRIBE, b"")
        link.connect(f"ipc://{path}")
        while True:
            # The backlog closes the gap before subscribing took effect, and any later loss.
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
    raise Problem(status, reply.message, reply.hint, reply.code)


def _check(path: Path) -> None:
    """Raise Problem where nobody listens or we may not connect: ZeroMQ itself would wait."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(path))
    except PermissionError:
        raise Problem(
            Exit.NOT_PERMITTED,
            f"cannot use {path}: permission denied",
            "run it as root, or join the group: sudo usermod -aG caovan $USER (then log in again)",
        ) from None
    except OSError as problem:
        refused = problem.errno == errno.ECONNREFUSED
        reason = "nobody listens there" if refused else problem.strerror or str(problem)
        remedy = "start it with `systemctl start caovan`"
        if path.parent != SYSTEM_RUNTIME:
            remedy = "start the caovand of this folder, or check --runtime and RUNTIME_DIRECTORY"
        raise Problem(
            Exit.NOT_REACHABLE, f"cannot reach caovand at {path}: {reason}", remedy
        ) from None


def connect(args: argparse.Namespace) -> Client:
    """A client for the daemon that the command line names."""
    return Client(runtime_directory(args.runtime))


def follow(client: Client, until: str, timeout_s: float, *, quiet: bool) -> Mapping[str, Any]:
    """Wait until the daemon is `until`, telling each new phase on stderr; the last status."""
    deadline = time.monotonic() + timeout_s
    told = ""
    while True:
        left_s = max(deadline - time.monotonic(), 0)
        answer = client.ask("wait", until=until, timeout_s=min(1.0, left_s))
        text = answer["state"] + (f", {answer['phase']}" if answer["phase"] else "")
        text += f": {answer['detail']}" if answer["detail"] else ""
        if text != told and not quiet:
            print(text, file=sys.stderr)
            told = text
        if answer["reached"] or left_s == 0 or answer["state"] == "FAILED":
            return answer


def outcome(answer: Mapping[str, Any], *, quiet: bool) -> int:
    """Tell how a change came out; the exit status."""
    if answer["refusal"] and answer["state"] == "SERVING":
        raise Problem(Exit.FAILED, f"the engine was left as it is: {answer['refusal']['text']}")
    if answer["state"] == "SERVING":
        if not quiet:
            served = answer["served"]
            print(f"serving {served['name']} on {served['url']}, MTP {answer['mtp']}")
        return Exit.DONE
    raise Problem(
        Exit.NOT_SERVING, f"not serving: {answer['state']}: {answer['reason']}", "caovanctl status"
    )
