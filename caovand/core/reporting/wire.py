"""The control protocol: one JSON frame a message, version 1.

    {"v":1,"id":"...","op":"status","args":{}}
    {"v":1,"id":"...","ok":true,"result":{...}}
    {"v":1,"id":"...","ok":false,"error":{"code":"...","message":"cannot ...","hint":"..."}}

With several models, a request names one by `"model":"NAME"`, its `name` in the `slots` of `status`;
without it, the request is for the only model. Notices (on the events socket) are
`{"v":1,"seq":N,"at":UNIX_S,"kind":"...","text":"...","data":{}}`; `data` names the `slot`
concerned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
MAX_BYTES = 64 * 1024
MAX_LINE_BYTES = 1 << 20
"""Maximum size of the response to a one-line request."""
OPEN_TO_ALL = frozenset({"status", "version", "wait", "recent"})
"""Requests that any user may send, as lines: ZeroMQ's handshake would take longer than the
response."""


class WireError(Exception):
    """A frame is not a valid request; `id` is the sender's if readable."""

    def __init__(self, code: str, message: str, hint: str = "", id: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.id = code, message, hint, id


@dataclass(frozen=True)
class Request:
    """A client's request; `trusted` depends on the socket it came on, never on the client."""

    op: str
    args: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    trusted: bool = True
    model: str = ""
    """The slot it concerns; "" for the only one."""


@dataclass(frozen=True)
class Reply:
    """The response: `result` on success, else `code`, `message` and `hint`."""

    id: str
    result: Mapping[str, Any] | None = None
    code: str = ""
    message: str = ""
    hint: str = ""

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return self.result is not None


@dataclass(frozen=True)
class Notice:
    """An action or observation of the daemon; `seq` counts from 1, `at` is Unix time in seconds."""

    seq: int
    at: float
    kind: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)


def encode_request(request: Request) -> bytes:
    """Encode a request as a frame."""
    model = {"model": request.model} if request.model else {}
    frame = {"v": VERSION, "id": request.id, "op": request.op, "args": dict(request.args)}
    return _dump({**frame, **model})


def encode_reply(reply: Reply) -> bytes:
    """Encode a reply as a frame."""
    if reply.result is not None:
        return _dump({"v": VERSION, "id": reply.id, "ok": True, "result": dict(reply.result)})
    failure = failure_fields(reply.code, reply.message, reply.hint)
    return _dump({"v": VERSION, "id": reply.id, **failure})


def failure_fields(code: str, message: str, hint: str) -> dict[str, Any]:
    """A failure as plain data, for frames and for `--json`."""
    return {"ok": False, "error": {"code": code, "message": message, "hint": hint}}


def encode_notice(notice: Notice) -> bytes:
    """Encode a notice as a frame."""
    return _dump(notice_fields(notice))


def notice_fields(notice: Notice) -> dict[str, Any]:
    """A notice as plain data, for frames and for `--json`."""
    return {
        "v": VERSION, "seq": notice.seq, "at": notice.at, "kind": notice.kind,
        "text": notice.text, "data": dict(notice.data),
    }  # fmt: skip


def decode_request(frame: bytes) -> Request:
    """Decode a request; WireError says what is wrong with it."""
    document = _load(frame)
    if not isinstance(document, dict):
        raise WireError("bad-frame", "cannot read the request: it is not a JSON object")
    request_id = document.get("id", "")
    if not isinstance(request_id, str) or len(request_id) > 64:
        raise WireError("bad-frame", "cannot read the request: id must be a string of at most 64")
    version = document.get("v")
    if version is True or version != VERSION:
        # The sender may have put 64 KiB of anything there: only quote a number.
        theirs = json.dumps(version)[:20] if isinstance(version, (int, float)) else "none"
        raise WireError(
            "bad-version", f"cannot use protocol version {theirs}: this is version {VERSION}",
            "update caovanctl or caovand so that both have the same version", request_id,
        )  # fmt: skip
    op, args = document.get("op"), document.get("args", {})
    if not isinstance(op, str) or not isinstance(args, dict):
        raise WireError(
            "bad-frame", "cannot read the request: op or args is missing", id=request_id
        )
    model = document.get("model", "")
    if not isinstance(model, str):
        raise WireError(
            "bad-frame", "cannot read the request: model is not a string", id=request_id
        )
    return Request(op, args, request_id, model=model)


def decode_reply(frame: bytes, max_bytes: int = MAX_BYTES) -> Reply:
    """Decode a reply; raises WireError."""
    document = _load(frame, max_bytes)
    if isinstance(document, dict) and document.get("v") == VERSION:
        reply_id, result, error = (document.get(name) for name in ("id", "result", "error"))
        if document.get("ok") is True and isinstance(result, dict):
            return Reply(str(reply_id), result=result)
        if document.get("ok") is False and isinstance(error, dict):
            texts = (str(error.get(name, "")) for name in ("code", "message", "hint"))
            return Reply(str(reply_id), None, *texts)
    raise WireError("bad-frame", "cannot read the daemon's answer", "update caovanctl")


def decode_notice(frame: bytes) -> Notice:
    """Decode a notice; raises WireError."""
    document = _load(frame)
    try:
        return Notice(
            int(document["seq"]), float(document["at"]), str(document["kind"]),
            str(document["text"]), dict(document["data"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        raise WireError("bad-frame", f"cannot read the notice: {str(problem)[:200]}") from problem


def _dump(document: Mapping[str, Any]) -> bytes:
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace")


def _load(frame: bytes, max_bytes: int = MAX_BYTES) -> Any:
    if len(frame) > max_bytes:
        raise WireError("too-large", f"cannot read {len(frame)} bytes: the limit is {max_bytes}")
    try:
        return json.loads(frame)
    except (ValueError, RecursionError) as problem:
        raise WireError("bad-frame", f"cannot read the frame: {problem}") from problem
