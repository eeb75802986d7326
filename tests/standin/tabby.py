"""The server of `tests.fake_engine`: tabby.py PORT WIDTH, or tabby.py --version.

With a width above 4 it runs out of memory, says so and exits. After the prompt [13] it hangs.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FITS = 4


class Server(BaseHTTPRequestHandler):
    stats: Mapping[str, int] = {"tokens": 0, "served": 0, "busy": 0}

    def do_GET(self) -> None:
        self.answer(self.stats)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["prompt"] == [13] or self.stats["busy"]:
            Server.stats = {**self.stats, "busy": 1}
            threading.Event().wait()
        tokens = asked["max_tokens"]
        Server.stats = {**self.stats, "tokens": self.stats["tokens"] + tokens}
        self.answer({"usage": {"completion_tokens": tokens}})

    def answer(self, document: Mapping[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(port: int, width: int) -> None:
    print("tabby: loading 50%", flush=True)
    if width > FITS:
        sys.exit(f"tabby: out of memory at width {width}")
    with ThreadingHTTPServer(("127.0.0.1", port), Server) as server:
        print("tabby: ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        print("tabby 1.0")
        sys.exit()
    serve(int(sys.argv[1]), int(sys.argv[2]))
