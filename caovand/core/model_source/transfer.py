"""Resume an interrupted download: what to request, and what a response may do to the file.

The hash decides at the end whether the content is correct. This module decides where bytes may be
written, so that no response ruins a file in a way that only the hash would reveal, hours later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from caovand.core.lifecycle import backoff

MAX_ATTEMPTS = 10
"""Consecutive attempts without progress: about eight minutes."""
MAX_WAIT_S = 900.0
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15}|\*)")
_LENGTH = re.compile(r"\d{1,15}")


@dataclass(frozen=True)
class RangeRequest:
    """The next request for a file: from `offset` on, if the file still has `etag`."""

    offset: int
    etag: str = ""

    def headers(self) -> dict[str, str]:
        """No headers for the whole file: every server then answers with all of it."""
        if not self.offset:
            return {}
        asked = {"Range": f"bytes={self.offset}-"}
        return {**asked, "If-Range": self.etag} if self.etag else asked


class Do(Enum):
    """The way to continue after a response."""

    WRITE = auto()
    """Write its body at `Judgement.offset`; the file is truncated there first."""
    START_OVER = auto()
    """The bytes kept so far cannot be continued."""
    WAIT = auto()
    """The server is busy or broken: repeat the same request later."""
    REFUSE = auto()
    """The response does not match the request."""


@dataclass(frozen=True)
class Judgement:
    """The verdict on a response; `why` is for people."""

    do: Do
    offset: int = 0
    why: str = ""


def ask(have_bytes: int, size_bytes: int, etag: str) -> RangeRequest:
    """The request to send with `have_bytes` of `size_bytes` on disk."""
    if not 0 < have_bytes < size_bytes:
        return RangeRequest(0)
    return RangeRequest(
        have_bytes, "" if etag.startswith("W/") else etag
    )  # a weak ETag forbids ranges


def judge(
    asked: RangeRequest, size_bytes: int, status: int, headers: Mapping[str, str]
) -> Judgement:
    """Judge a response to `asked`; header names are in lower case."""
    if status in RETRIED:
        return Judgement(Do.WAIT, why=f"HTTP {status}")
    if status == 416 and asked.offset:
        return Judgement(Do.START_OVER, why="HTTP 416")
    if headers.get("content-encoding", "identity").lower() != "identity":
        return Judgement(Do.REFUSE, why="it is compressed, which was not requested")
    length = headers.get("content-length")
    if status == 200:
        if length is not None and not _equals(length, size_bytes):
            return _mismatch(f"a length of {length[:20]}", f"{size_bytes} bytes")
        return Judgement(Do.WRITE, 0)
    if status != 206 or not asked.offset:
        return Judgement(Do.REFUSE, why=f"HTTP {status}")
    match = _RANGE.fullmatch(headers.get("content-range", ""))
    if not match:
        return Judgement(Do.REFUSE, why="it is a part of the file, without its range")
    first, last, whole = int(match[1]), int(match[2]), match[3]
    if (first, last) != (asked.offset, size_bytes - 1) or whole not in ("*", str(size_bytes)):
        return _mismatch(match[0], f"bytes {asked.offset}-{size_bytes - 1}/{size_bytes}")
    if length is not None and not _equals(length, last - first + 1):
        return _mismatch(f"a length of {length[:20]}", f"{last - first + 1} bytes")
    if asked.etag and headers.get("etag", asked.etag) != asked.etag:
        return Judgement(Do.START_OVER, why="the file has changed on the server")
    return Judgement(Do.WRITE, asked.offset)


def pause_s(attempt: int, chance: float, retry_after_s: float | None) -> float | None:
    """Seconds to wait after attempt number `attempt` failed; None to give up."""
    if attempt >= MAX_ATTEMPTS:
        return None
    if retry_after_s is None:
        return backoff.delay(attempt, chance)
    return retry_after_s if 0 <= retry_after_s <= MAX_WAIT_S else None


def _equals(text: str, number: int) -> bool:
    return bool(_LENGTH.fullmatch(text)) and int(text) == number


def _mismatch(claims: str, real: str) -> Judgement:
    return Judgement(Do.REFUSE, why=f"it claims {claims}, the hub's list says {real}")
