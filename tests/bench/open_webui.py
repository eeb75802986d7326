"""What a user of Open WebUI sees while the engine restarts, dies, hangs and is stopped.

    python -m tests.bench.open_webui COMMAND [--engine llamacpp|vllm]

COMMAND is the `open-webui` of an environment of its own. It runs with the settings of `caovanctl
launch open-webui`, and is used by its HTTP API, as its page does. Nothing here fails.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from caovand.cli.common.client_programs import PROGRAMS, ClientEndpoint
from tests.bench.clients.__main__ import Stage, core, serving, staged
from tests.patience import PATIENCE_S, until
from tests.ports import free_port

OFFLINE = {
    "OFFLINE_MODE": "true", "HF_HUB_OFFLINE": "1", "ENABLE_VERSION_UPDATE_CHECK": "false",
    "ANONYMIZED_TELEMETRY": "false", "RAG_EMBEDDING_ENGINE": "openai",
}  # fmt: skip
SHOWN = 160  # of an answer's last characters
ACCOUNT = {"name": "Ada", "email": "ada@example.org", "password": "a long passphrase"}


class WebUi:
    """A running Open WebUI and its first user."""

    def __init__(self, url: str) -> None:
        self._url, self._token = url, ""

    def sign_up(self) -> None:
        """Become its first user, who is its administrator."""
        self._token = json.loads(self._ask("/api/v1/auths/signup", ACCOUNT))["token"]

    def models(self) -> str:
        """The models that its page offers."""
        try:
            listed = json.loads(self._ask("/api/models"))
        except OSError as problem:
            return f"error: {problem}"
        return ", ".join(one["id"] for one in listed["data"]) or "none"

    def chat(self, *, stream: bool = True) -> str:
        """What a chat shows: the end of its text, or its error."""
        messages = [{"role": "user", "content": f"hello at {time.time()}"}]
        body = {"model": "tiny", "messages": messages, "stream": stream, "max_tokens": 300}
        began = time.monotonic()
        try:
            text = self._ask("/api/chat/completions", body)
        except urllib.error.HTTPError as problem:
            text = f"HTTP {problem.code}, {problem.read().decode()}"
        except OSError as problem:
            text = f"{type(problem).__name__}: {problem}"
        return f"{time.monotonic() - began:.1f} s, ...{text.strip()[-SHOWN:]!r}"

    def _ask(self, path: str, body: Any = None) -> str:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as got:
            return str(got.read().decode())


@contextmanager
def open_webui(command: str, folder: Path, to: ClientEndpoint) -> Iterator[WebUi]:
    """Run it until the block ends."""
    port, program = free_port(), PROGRAMS["open-webui"].run(to)
    environ = {**os.environ, **program.env, **OFFLINE, "DATA_DIR": str(folder)}
    environ["WEBUI_SECRET_KEY"] = "secret"
    words = [command, *program.words, "--port", str(port)]
    log = folder / "open-webui.log"
    with open(log, "w") as out:
        process = subprocess.Popen(words, env=environ, cwd=folder, stdout=out, stderr=out)
    try:
        one = WebUi(f"http://127.0.0.1:{port}")
        until(lambda: process.poll() is not None or answers(f"http://127.0.0.1:{port}/health"),
              "Open WebUI")  # fmt: skip
        if process.poll() is not None:
            sys.exit(f"{command} has ended:\n{log.read_text()[-3000:]}")
        one.sign_up()
        yield one
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def answers(url: str) -> bool:
    """Whether a server is there."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S):
            return True
    except OSError:
        return False


def show(what: str, seen: str) -> None:
    """Print a row."""
    print(f"{what:<34} {seen}", flush=True)


def meanwhile(one: WebUi, what: str, stage: Stage, *words: str) -> None:
    """Chat before and after a command has begun, while it runs."""
    begun = threading.Thread(target=lambda: show(f"{what}: begun before", one.chat()))
    begun.start()
    waits = stage.one.ctl(*words)
    if waits.returncode:
        show(f"{what}: caovanctl", waits.stderr)
    show(f"{what}: models", one.models())
    show(f"{what}: a stream", one.chat())
    show(f"{what}: a whole answer", one.chat(stream=False))
    begun.join()


def used(one: WebUi, stage: Stage) -> None:
    """Print what its user sees."""
    show("serving: models", one.models())
    show("serving: a stream", one.chat())
    show("serving: a whole answer", one.chat(stream=False))
    meanwhile(one, "restart", stage, "restart", "--no-wait")
    serving(stage)
    for what, number in (("killed", signal.SIGKILL), ("frozen", signal.SIGSTOP)):
        os.kill(core(stage), number)
        show(f"engine {what}: models", one.models())
        show(f"engine {what}: a stream", one.chat())
        serving(stage)
    meanwhile(one, "stopped", stage, "stop")
    meanwhile(one, "started again", stage, "start", "--no-wait")


def main() -> None:
    """Start everything, and print the rows."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.open_webui")
    parser.add_argument("command")
    parser.add_argument("--engine", choices=("llamacpp", "vllm"), default="llamacpp")
    options = parser.parse_args()
    with staged(options.engine) as stage:
        serving(stage)
        key = stage.one.ctl("key", "add", "webui").stdout.split()[-1]
        endpoint = ClientEndpoint(url=stage.url.rstrip("/"), model="tiny", key=key)
        folder = stage.folder / "open-webui"
        folder.mkdir()
        with open_webui(options.command, folder, endpoint) as one:
            used(one, stage)


if __name__ == "__main__":
    main()
