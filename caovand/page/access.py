"""Who may read: the token, as a cookie or a bearer; and which requests a browser may send for whom.

Bound to a loopback address only its own names count as Host: a stranger's name that leads here
(DNS rebinding) does not.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import deque
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from caovand.core.addresses import is_loopback, split

COOKIE = "caovan_page"
WRONG_A_MINUTE = 10  # of one address
MOST_ADDRESSES = 1024
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Access:
    """The rules of a page that listens on `listen` and asks for `token`, "" for none."""

    def __init__(self, listen: str, token: str, clock: Callable[[], float]) -> None:
        host, _ = split(listen)
        self._hosts = LOOPBACK_NAMES | {host.lower()} if is_loopback(host) else None
        self._token, self._clock = token.encode(), clock
        self.cookie = hmac.new(self._token, b"caovan page", hashlib.sha256).hexdigest()
        self._wrong: dict[str, deque[float]] = {}

    @property
    def asks(self) -> bool:
        """Whether readers need the token."""
        return bool(self._token)

    def knows_host(self, header: str) -> bool:
        """Whether a request with this Host header is meant for us."""
        return self._hosts is None or _host_name(header) in self._hosts

    @staticmethod
    def is_own(origin: str | None, host: str) -> bool:
        """Whether a POST with these headers is from our own page, or from no browser."""
        if origin is None:
            return True
        scheme, _, place = origin.partition("://")
        return scheme in ("http", "https") and place.lower() == host.lower() != ""

    def admits(self, cookies: Mapping[str, str], authorization: str, address: str) -> bool:
        """Whether a request has the token, or needs none."""
        if not self._token:
            return True
        if _equal(cookies.get(COOKIE, "").encode(), self.cookie.encode()):
            return True
        kind, _, token = authorization.partition(" ")
        return kind.lower() == "bearer" and self.is_token(token.strip(), address)

    def is_token(self, token: str, address: str) -> bool:
        """Whether this is the token; after many wrong ones an address has to wait."""
        if not self._token or self.is_blocked(address):
            return False
        if _equal(token.encode("utf-8", "replace"), self._token):
            return True
        while len(self._wrong) >= MOST_ADDRESSES and address not in self._wrong:
            del self._wrong[next(iter(self._wrong))]
        self._wrong.setdefault(address, deque(maxlen=WRONG_A_MINUTE)).append(self._clock())
        return False

    def is_blocked(self, address: str) -> bool:
        """Whether an address has to wait before it may try another token."""
        wrong = self._wrong.get(address, deque())
        return len(wrong) == WRONG_A_MINUTE and wrong[0] > self._clock() - 60


def _host_name(header: str) -> str:
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _equal(one: bytes, other: bytes) -> bool:
    return hmac.compare_digest(one, other)
