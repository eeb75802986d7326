"""HTTP to a hub through requests: proxies, certificates, one redirect at a time, a guarded token.

requests itself follows redirects and adds passwords from ~/.netrc; both are off. A hub serves its
large files from another host: the token is never sent there.
"""

from __future__ import annotations

import contextlib
import http.cookiejar
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import requests
import urllib3
from requests.utils import get_environ_proxies

from caovand import __version__
from caovand.adapters.model_pull.errors import PullError
from caovand.adapters.model_pull.hubs import Hub
from caovand.adapters.system import wall_clock
from caovand.core.addresses import is_loopback
from caovand.core.checkpoint.budget import BadHeader, Budget
from caovand.core.printable import one_line

PATIENCE_S = (20.0, 60.0)  # to connect, and between two pieces
MAX_REDIRECTS = 8
PIECE = 256 << 10
MAX_VALUES = 500_000
REDIRECTS = (301, 302, 303, 307, 308)


class ConnectionCut(Exception):
    """The connection failed or was lost; a retry may help."""


class HubResponse:
    """An answer whose body has not been read yet."""

    def __init__(self, response: requests.Response, host: str) -> None:
        self._response, self._host = response, host
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    def pieces(self, max_bytes: int) -> Iterator[bytes]:
        """The body as it arrives, at most this much of it. Raises ConnectionCut."""
        left = max_bytes
        while left > 0:
            with _as_connection_cut(self._host):
                piece = self._response.raw.read(min(PIECE, left), decode_content=False)
            if not piece:
                return
            left -= len(piece)
            yield piece

    def retry_after_s(self) -> float | None:
        """The wait that Retry-After requests; None if there is no usable one."""
        text = self.headers.get("retry-after", "").strip()
        if text.isdecimal() and len(text) < 10:
            return float(text)
        try:
            return max(parsedate_to_datetime(text).timestamp() - wall_clock.now(), 0.0)
        except (TypeError, ValueError, IndexError, OverflowError):
            return None


class HubClient:
    """Requests to one hub. `token` is sent only to the hub's own scheme, host and port."""

    def __init__(self, hub: Hub, token: str, environ: Mapping[str, str]) -> None:
        self.hub = hub
        self._secret = hub.token_headers(token) if token else {}
        self._home = urlsplit(hub.endpoint)
        bundle = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
        self._verify: str | bool = bundle or True  # an empty variable must not switch it off
        self._session = requests.Session()
        self._session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=()))

    @contextlib.contextmanager
    def get(self, url: str, headers: Mapping[str, str]) -> Iterator[HubResponse]:
        """GET, following redirects. Raises ConnectionCut; PullError for a redirect that is not
        allowed."""
        for _ in range(MAX_REDIRECTS):
            where = self._require_allowed(url)
            own = _origin(where) == _origin(self._home)
            response = self._send(url, where, {**headers, **(self._secret if own else {})})
            try:
                if response.status_code not in REDIRECTS:
                    yield HubResponse(response, where.hostname or "")
                    return
                # The header's bytes as sent: UTF-8, which requests reads as Latin-1.
                target = response.headers.get("location", "").encode("latin-1", "replace")
                url = urljoin(url, target.decode("utf-8", "replace"))
            finally:
                response.close()
        raise PullError(
            f"download from {self._home.hostname}",
            f"it redirects more than {MAX_REDIRECTS} times",
            "check the endpoint, or try again later",
        )

    def json(self, url: str, max_bytes: int) -> tuple[HubResponse, Any]:
        """GET a JSON document; None unless the status is 200. Raises ConnectionCut."""
        with self.get(url, {"Accept": "application/json"}) as answer:
            if answer.status != 200:
                return answer, None
            data = b"".join(answer.pieces(max_bytes + 1))
            length = answer.headers.get("content-length", "")
        if len(data) > max_bytes:
            raise self._strange(f"its list of files is larger than {max_bytes >> 20} MiB")
        if length.isdecimal() and len(data) < int(length[:15]):
            raise ConnectionCut("the answer ended early")
        try:
            return answer, Budget(time.thread_time).json(data, MAX_VALUES)
        except BadHeader as problem:
            raise self._strange(f"its answer cannot be parsed: {problem}") from None

    def _strange(self, fact: str) -> PullError:
        return PullError(
            f"list the files on {self._home.hostname}",
            fact,
            "check the endpoint, or try again later",
        )

    def _send(self, url: str, where: SplitResult, headers: Mapping[str, str]) -> requests.Response:
        all_headers = {
            "User-Agent": f"caovan/{__version__}", "Accept-Encoding": "identity", **headers
        }  # fmt: skip
        with _as_connection_cut(where.hostname or ""):
            # Our own `auth`, though it adds nothing, keeps requests from reading ~/.netrc.
            asked = requests.Request("GET", url, headers=all_headers, auth=lambda request: request)
            local = is_loopback(where.hostname or "")
            return self._session.send(
                self._session.prepare_request(asked),
                stream=True,
                timeout=PATIENCE_S,
                allow_redirects=False,
                verify=self._verify,
                proxies={} if local else get_environ_proxies(url, no_proxy=None),
            )

    def _require_allowed(self, url: str) -> SplitResult:
        """Parse an address that may be requested; raises PullError for any other."""
        try:
            where = urlsplit(url)
            host, _ = where.hostname or "", where.port
        except ValueError:
            host = ""
        home = is_loopback(self._home.hostname or "")
        plain = host and where.scheme == "http" and home and is_loopback(host)
        if not host or where.username is not None or not (where.scheme == "https" or plain):
            raise PullError(
                f"download from {self._home.hostname}",
                f"it redirects to {one_line(url[:80])}, which is not https",
                "check the endpoint",
            )
        return where


def _origin(where: SplitResult) -> tuple[str, str | None, int | None]:
    default = {"https": 443, "http": 80}.get(where.scheme)
    return where.scheme, where.hostname, where.port or default


@contextlib.contextmanager
def _as_connection_cut(host: str) -> Iterator[None]:
    """Turn any requests or urllib3 error into ConnectionCut, in plain text without addresses."""
    try:
        yield
    except requests.exceptions.SSLError as problem:
        raise PullError(
            "download",
            f"the certificate of {host} is not trusted ({_innermost(problem)})",
            "check the clock, the endpoint, and the proxy; REQUESTS_CA_BUNDLE sets other roots",
        ) from None
    except (
        requests.exceptions.InvalidURL,
        requests.exceptions.InvalidSchema,
        requests.exceptions.InvalidHeader,
        UnicodeError,
    ):
        raise PullError(
            "download",
            f"{host} does not resolve to a valid address",
            "check the endpoint, or try again later",
        ) from None
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as problem:
        raise ConnectionCut(f"{host}: {_innermost(problem)}") from None


def _innermost(problem: BaseException) -> str:
    """The reason in the words of the system or the outermost library; never an address with its
    signature."""
    if isinstance(problem, (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError)):
        return "no answer in time"
    seen: list[BaseException] = []
    todo: list[Any] = [problem]
    while todo and len(seen) < 20:
        error = todo.pop(0)
        if not isinstance(error, BaseException) or error in seen:
            continue
        seen.append(error)
        if isinstance(error, OSError) and error.errno and error.strerror:
            return one_line(str(error.strerror))
        todo += [*error.args, getattr(error, "reason", None), error.__cause__, error.__context__]
    return "the connection was lost"
