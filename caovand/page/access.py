"""Access control: the token, as a cookie or bearer, and which requests from browsers are accepted.

A page bound to a loopback address accepts only loopback names as Host, which defeats DNS rebinding:
a foreign name that resolves to this machine is refused.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from caovand.core.addresses import is_loopback, split_address

COOKIE = "caovan_page"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Access:
    """Rules of a page that listens on `listen` and requires `token`, "" if there is none."""

    def __init__(self, listen: str, token: str) -> None:
        host, _ = split_address(listen)
        self._hosts = LOOPBACK_NAMES | {host.lower()} if is_loopback(host) else None
        self._token = token.encode()
        self.cookie = hmac.new(self._token, b"caovan page", hashlib.sha256).hexdigest()

    @property
    def requires_token(self) -> bool:
        """Whether readers need the token."""
        return bool(self._token)

    def knows_host(self, header: str) -> bool:
        """Whether a request with this Host header is addressed to this page."""
        return self._hosts is None or _host_name(header) in self._hosts

    @staticmethod
    def is_own(origin: str | None, host: str) -> bool:
        """Whether a POST with these headers comes from our own page, or from no browser."""
        if origin is None:
            return True
        scheme, _, place = origin.partition("://")
        return scheme in ("http", "https") and place.lower() == host.lower() != ""

    def admits(self, cookies: Mapping[str, str], authorization: str) -> bool:
        """Whether a request has the token, or needs none."""
        if not self._token:
            return True
        if _equal(cookies.get(COOKIE, "").encode(), self.cookie.encode()):
            return True
        kind, _, token = authorization.partition(" ")
        return kind.lower() == "bearer" and self.is_token(token.strip())

    def is_token(self, token: str) -> bool:
        """Whether this is the page's token."""
        return self.requires_token and _equal(token.encode("utf-8", "replace"), self._token)


def _host_name(header: str) -> str:
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _equal(sent: bytes, other: bytes) -> bool:
    return hmac.compare_digest(sent, other)
