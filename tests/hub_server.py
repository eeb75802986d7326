"""A local model hub that speaks both APIs and misbehaves on demand.

As at a real hub, large files come from a second address. `seen` records every request.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
NAME = "owner/tiny"
LARGE = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True)
class Fault:
    """How one response misbehaves. A `status` replaces the whole response; the others alter a good
    one."""

    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    after: int | None = None
    """Cut the connection after this many bytes."""
    length: int | None = None
    """The Content-Length to claim."""
    extra: bytes = b""
    """Extra bytes after the content; no length is sent."""
    flipped: bool = False
    no_ranges: bool = False
    content_range: str = ""
    piece: int = 0
    """Send the response in pieces of this many bytes."""


@dataclass(frozen=True)
class Seen:
    """A request: whether it came to the second address, its path and headers."""

    large: bool
    path: str
    headers: Mapping[str, str]


@dataclass
class HubServer:
    """Both servers and the model they serve."""

    files: dict[str, bytes]
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    """Responses that replace the real ones, by path prefix."""
    redirect: str = ""
    """The redirect target for large files, instead of the second address."""
    seen: list[Seen] = field(default_factory=list)
    endpoint: str = ""
    second: str = ""

    def of(self, path: str) -> list[Seen]:
        """The requests for a file's content."""
        return [one for one in self.seen if one.path.endswith(path) and one.large]

    def hugging_face(self) -> Any:
        """The file list in Hugging Face's format."""
        siblings = []
        for path, data in self.files.items():
            entry: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": git(data)}
            if path.endswith(LARGE):
                sha = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        return {"id": NAME, "sha": COMMIT, "siblings": siblings}

    def modelscope(self) -> Any:
        """The file list in ModelScope's format."""
        entries = [
            {
                "Path": path, "Name": path, "Size": len(data), "Type": "blob",
                "Sha256": hashlib.sha256(data).hexdigest(),
            }
            for path, data in self.files.items()
        ]  # fmt: skip
        entries.append({"Path": "folder", "Name": "folder", "Size": 0, "Type": "tree"})
        return {"Code": 200, "Success": True, "Data": {"Files": entries}}


def git(data: bytes) -> str:
    """A blob's id in git."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def handler(hub: HubServer, *, large: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            names = {name.lower(): value for name, value in self.headers.items()}
            hub.seen.append(Seen(large, self.path, names))
            for start, document in hub.documents.items():
                if parts.path.startswith(start):
                    self.document(document)
                    return
            query = parse_qs(parts.query)
            if parts.path.startswith(f"/api/models/{NAME}/revision/"):
                self.faulty("list") or self.document(hub.hugging_face())
            elif parts.path == f"/api/v1/models/{NAME}/repo/files":
                self.faulty("list") or self.document(hub.modelscope())
            elif parts.path == f"/api/v1/models/{NAME}/repo":
                self.content(query["FilePath"][0])
            elif found := re.match(rf"/{NAME}/resolve/\w+/(.*)", parts.path):
                self.content(unquote(found[1]))
            else:
                self.plain(404)

        def document(self, document: Any) -> None:
            data = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.plain(200, data)

        def plain(self, status: int, data: bytes = b"", *headers: tuple[str, str]) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def faulty(self, what: str) -> bool:
            """Whether a fault's status replaced the whole response."""
            waiting = hub.faults.get(what, [])
            if not waiting or not waiting[0].status:
                return False
            fault = waiting.pop(0)
            self.plain(fault.status, b"", *fault.headers)
            return True

        def content(self, path: str) -> None:
            if path not in hub.files:
                self.plain(404)
            elif path.endswith(LARGE) and not large:
                target = f"{hub.redirect or hub.second}{self.path}"
                self.plain(302, b"", ("Location", target), ("Set-Cookie", "a=b"))
            elif not self.faulty(path):
                waiting = hub.faults.get(path, [])
                self.send(path, waiting.pop(0) if waiting else Fault())

        def send(self, path: str, fault: Fault) -> None:
            data, etag = hub.files[path], hub.etags.get(path, f'"{path}"')
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            condition = self.headers.get("If-Range")
            status, begin, end = 200, 0, len(data)
            if asked and not fault.no_ranges and condition in (None, etag):
                status, begin = 206, int(asked[1])
                end = min(int(asked[2] or len(data)) + 1, len(data))
            if begin >= end > 0:
                self.plain(416)
                return
            body = bytearray(data[begin:end])
            if fault.flipped:
                body[0] ^= 1
            self.send_response(status)
            self.send_header("ETag", etag)
            if status == 206:
                real = f"bytes {begin}-{end - 1}/{len(data)}"
                self.send_header("Content-Range", fault.content_range or real)
            if not fault.extra:
                length = len(body) if fault.length is None else fault.length
                self.send_header("Content-Length", str(length))
            self.end_headers()
            body = body[: fault.after] + fault.extra
            step = fault.piece or len(body) or 1
            with contextlib.suppress(OSError):
                for at in range(0, len(body), step):
                    self.wfile.write(body[at : at + step])
                    self.wfile.flush()
            self.close_connection = bool(fault.extra) or fault.after is not None

    return Handler


class Quiet(ThreadingHTTPServer):
    """Does not report disconnecting clients, which are what these tests are about."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextlib.contextmanager
def serving(files: Mapping[str, bytes], tls: ssl.SSLContext | None = None) -> Iterator[HubServer]:
    """Run a hub with these files."""
    hub = HubServer(dict(files))
    with contextlib.ExitStack() as stack:
        for large in (False, True):
            server = Quiet(("127.0.0.1", 0), handler(hub, large=large))
            if tls is not None:
                server.socket = tls.wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            address = f"http{'s' * bool(tls)}://127.0.0.1:{server.server_address[1]}"
            hub.endpoint, hub.second = (hub.endpoint, address) if large else (address, "")
        yield hub
