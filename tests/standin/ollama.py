#!/usr/bin/env python3
"""A stand-in for Ollama: `ollama --version` and `ollama serve`, as its documentation has them.

It reads the variables of the real one, keeps models as entries and blobs, loads one at the first
completion in a process of its own, and speaks /api/version, /api/ps, /api/pull and
/v1/completions. Prompts are texts, and an answer may end early. Its log lines are the real one's.

STANDIN_FITS are the bytes of cache, at two a token in half precision, that its "memory" has,
STANDIN_LIBRARY the GGUF files that can be pulled, and with STANDIN_CUT a pull ends early.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERSION = "0.12.3"
BYTES = {"f16": 2, "q8_0": 1, "q4_0": 1}
RUNNERS: dict[str, int] = {}


def log(level: str, source: str, text: str) -> None:
    clock = time.strftime("%Y-%m-%dT%H:%M:%S")
    print(f"time={clock}.000Z level={level} source={source} {text}", file=sys.stderr, flush=True)


def entries() -> dict[str, Path]:
    """The entries of all models by the names that clients use."""
    root = Path(os.environ["OLLAMA_MODELS"]) / "manifests/registry.ollama.ai/library"
    return {f"{file.parent.name}:{file.name}": file for file in root.glob("*/*")}


def blob(entry: Path) -> Path:
    layers = json.loads(entry.read_text())["layers"]
    digest = next(one["digest"] for one in layers if one["mediaType"].endswith(".model"))
    return Path(os.environ["OLLAMA_MODELS"], "blobs", digest.replace(":", "-"))


def load(name: str) -> str:
    """Start the model's runner, unless it has one; why it cannot be loaded, or ""."""
    if name in RUNNERS:
        return ""
    file = blob(entries()[name])
    tokens = int(os.environ["OLLAMA_CONTEXT_LENGTH"]) * int(os.environ["OLLAMA_NUM_PARALLEL"])
    need, fits = tokens * BYTES[os.environ["OLLAMA_KV_CACHE_TYPE"]], int(os.environ["STANDIN_FITS"])
    log("INFO", "server.go:757", 'msg="loading model" "model layers"=3 requested=-1')
    if need > fits:
        why = f"model requires more system memory ({need}.0 B) than is available ({fits}.0 B)"
        log("INFO", "sched.go:470", f'msg="Load failed" model={file} error="{why}"')
        return why
    size = file.stat().st_size
    log("INFO", "device.go:245", f'msg="model weights" device=CPU size="{size / 1024:.1f} KiB"')
    RUNNERS[name] = pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    log("INFO", "server.go:1388", 'msg="llama runner started in 0.01 seconds"')
    return ""


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers: dict[str, Any] = {
            "/api/version": {"version": VERSION},
            "/api/ps": {"models": [{"name": name, "size_vram": 0} for name in RUNNERS]},
        }
        found = answers.get(self.path)
        self.answer(200 if found else 404, found or {"error": "not found"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = str(asked["model"])
        if self.path == "/api/pull":
            self.pull(name)
            return
        name = name if ":" in name else f"{name}:latest"
        if name not in entries():
            self.answer(404, {"error": {"message": f"model '{name}' not found"}})
        elif not isinstance(asked["prompt"], str):
            self.answer(400, {"error": {"message": "cannot unmarshal array into Go struct field"}})
        elif why := load(name):
            self.answer(500, {"error": {"message": why}})
        else:
            self.answer(200, {"usage": {"completion_tokens": min(asked["max_tokens"], 1)}})

    def pull(self, name: str) -> None:
        """A model of its "library", a folder of GGUF files: lines as the real one sends them."""
        self.send_response(200)
        self.end_headers()
        file = Path(os.environ["STANDIN_LIBRARY"], name.replace(":", "-") + ".gguf")
        self.line({"status": "pulling manifest"})
        if not file.exists():
            self.line({"error": "pull model manifest: file does not exist"})
            return
        data = file.read_bytes()
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        for done in range(0, len(data) + 1, max(len(data) // 4, 1)):
            pulling = f"pulling {digest[7:19]}"
            self.line({"status": pulling, "digest": digest, "total": len(data), "completed": done})
            if "STANDIN_CUT" in os.environ:
                return
        models = Path(os.environ["OLLAMA_MODELS"])
        (models / "blobs").mkdir(parents=True, exist_ok=True)
        (models / "blobs" / digest.replace(":", "-")).write_bytes(data)
        model, _, tag = name.partition(":")
        entry = models / "manifests/registry.ollama.ai/library" / model / tag
        entry.parent.mkdir(parents=True, exist_ok=True)
        layer = {"mediaType": "application/vnd.ollama.image.model", "digest": digest}
        entry.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
        self.line({"status": "verifying sha256 digest"})
        self.line({"status": "success"})

    def line(self, table: Any) -> None:
        self.wfile.write(json.dumps(table).encode() + b"\n")
        self.wfile.flush()

    def answer(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Its access log is not what is tested."""


def serve() -> None:
    host, _, port = os.environ["OLLAMA_HOST"].rpartition(":")
    log("INFO", "routes.go:1524", 'msg="server config" env="map[]"')
    try:
        server = ThreadingHTTPServer((host, int(port)), Server)
    except OSError:
        sys.exit(f"Error: listen tcp {host}:{port}: bind: address already in use")
    shown = f'msg="Listening on {host}:{port} (version {VERSION})"'
    log("INFO", "routes.go:1577", shown)
    log("INFO", "types.go:60", 'msg="inference compute" id=cpu library=cpu compute="" name=cpu')
    signal.signal(signal.SIGTERM, lambda *_: end())
    server.serve_forever()


def end() -> None:
    for pid in RUNNERS.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        print("Warning: could not connect to a running Ollama instance")
        print(f"Warning: client version is {VERSION}")
        sys.exit()
    serve()
