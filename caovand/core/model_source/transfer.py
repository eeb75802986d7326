"""How a download goes on after a cut: what to ask for, and what an answer may do to the file.

Whether the content is right, its hash decides at the end. This decides where bytes may be
written, so that no answer makes a file that only its hash can refuse, after hours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from caovand.core.lifecycle import backoff

MAX_ATTEMPTS = 10
"""In a row without a byte gained: about eight minutes."""
MAX_WAIT_S = 900.0
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15}|\*)")
_LENGTH = re.compile(r"\d{1,15}")


@dataclass(frozen=True)
class RangeRequest:
    """The next request for a file: from `offset` on, provided that it is still `etag`'s."""

    offset: int
    etag: str = ""

    def headers(self) -> dict[str, str]:
        """Nothing for the whole file: then every server answers with all of it."""
        if not self.offset:
            return {}
        asked = {"Range": f"bytes={self.offset}-"}
        return {**asked, "If-Range": self.etag} if self.etag else asked


class Do(Enum):
    """What an answer is good for."""

    WRITE = auto()
    """Its body belongs at `Judgement.offset`; the file is cut there first."""
    START_OVER = auto()
    """What was kept cannot be continued."""
    WAIT = auto()
    """The server is busy or broken: the same request later."""
    REFUSE = auto()
    """It is no answer to this request."""


@dataclass(frozen=True)
class Judgement:
    """What to do with an answer; `why` is for people."""

    do: Do
    offset: int = 0
    why: str = ""


def ask(have_bytes: int, size_bytes: int, etag: str) -> RangeRequest:
    """What to ask for with `have_bytes` of `size_bytes` on disk."""
    if not 0 < have_bytes < size_bytes:
        return RangeRequest(0)
    return RangeRequest(
        have_bytes, "" if etag.startswith("W/") else etag
    )  # a weak one forbids ranges


def judge(
    asked: RangeRequest, size_bytes: int, status: int, headers: Mapping[str, str]
) -> Judgement:
    """What an answer to `asked` is good for; the names of its headers are in lower case."""
    if status in RETRIED:
        return Judgement(Do.WAIT, why=f"HTTP {status}")
    if status == 416 and asked.offset:
        return Judgement(Do.START_OVER, why="HTTP 416")
    if headers.get("content-encoding", "identity").lower() != "identity":
        return Judgement(Do.REFUSE, why="it is compressed, which was not asked for")
    length = headers.get("content-length")
    if status == 200:
        if length is not None and not _is(length, size_bytes):
            return _lie(f"a length of {length[:20]}", f"{size_bytes} bytes")
        return Judgement(Do.WRITE, 0)
    if status != 206 or not asked.offset:
        return Judgement(Do.REFUSE, why=f"HTTP {status}")
    found = _RANGE.fullmatch(headers.get("content-range", ""))
    if not found:
        return Judgement(Do.REFUSE, why="it is a part of the file and does not say which")
    first, last, whole = int(found[1]), int(found[2]), found[3]
    if (first, last) != (asked.offset, size_bytes - 1) or whole not in ("*", str(size_bytes)):
        return _lie(found[0], f"bytes {asked.offset}-{size_bytes - 1}/{size_bytes}")
    if length is not None and not _is(length, last - first + 1):
        return _lie(f"a length of {length[:20]}", f"{last - first + 1} bytes")
    if asked.etag and headers.get("etag", asked.etag) != asked.etag:
        return Judgement(Do.START_OVER, why="the file has changed on the server")
    return Judgement(Do.WRITE, asked.offset)


def pause_s(attempt: int, chance: float, retry_after_s: float | None) -> float | None:
    """Seconds to wait after attempt number `attempt` failed; None if it is not worth it."""
    if attempt >= MAX_ATTEMPTS:
        return None
    if retry_after_s is None:
        return backoff.delay(attempt, chance)
    return retry_after_s if 0 <= retry_after_s <= MAX_WAIT_S else None


def _is(text: str, number: int) -> bool:
    return bool(_LENGTH.fullmatch(text)) and int(text) == number


def _lie(claims: str, real: str) -> Judgement:
    return Judgement(Do.REFUSE, why=f"it claims {claims}, the hub's list says {real}")
