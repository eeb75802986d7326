"""A hybrid model that drafts, under one daemon for the tests of this folder."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.system import processes
from tests.daemon_process import Daemon, daemon
from tests.e2e.hybrid.screens import Screens
from tests.ports import free_port
from tests.real_engine import configuration

REQUEST_S = 120


@dataclass(frozen=True)
class Server:
    """A daemon that serves the tiny hybrid model."""

    daemon: Daemon
    port: int

    def get(self, path: str) -> str:
        """What the engine answers."""
        address = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(address, timeout=REQUEST_S) as answer:
            return str(answer.read().decode())

    def chat(self, words: int, **more: object) -> dict[str, object]:
        """A chat completion as a client would ask for it."""
        with self._asked(words, **more) as answer:
            return dict(json.loads(answer.read()))

    def streamed(self, words: int, before: int) -> list[tuple[float, int]]:
        """When each piece of a chat completion came, and how many tokens `before` grew to."""
        options = {"include_usage": True, "continuous_usage_stats": True}
        pieces = []
        with self._asked(words, stream=True, stream_options=options) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    usage = json.loads(line[6:])["usage"]
                    pieces.append((time.monotonic(), before + usage["completion_tokens"]))
        return pieces

    def _asked(self, words: int, **more: object) -> Any:
        body = {
            "model": "tiny", "max_tokens": words, "ignore_eos": True, "temperature": 0,
            "messages": [{"role": "user", "content": "hello"}], **more,
        }  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=REQUEST_S)

    def inspected(self) -> dict[Path, int]:
        """When vLLM wrote down what it found out about each class of models."""
        found = self.daemon.folder.glob("cache/modelinfos/*/*.json")
        return {path: path.stat().st_mtime_ns for path in found}

    def counter(self, name: str) -> float:
        """The sum of a counter in vLLM's own metrics."""
        rows = re.findall(rf"^{re.escape(name)}{{.*}} (\S+)$", self.get("/metrics"), re.M)
        return sum(map(float, rows))

    def forecast_is_reported(self) -> bool:
        """Whether the forecast cache is the one that vLLM reports."""
        tokens = self.daemon.status()["forecast"]["kv_tokens"]
        return bool(tokens["forecast"] == tokens["reported"])

    def alive(self, pids: set[int]) -> set[int]:
        """Which of these processes still live."""
        return pids & {p.pid for p in processes.all_processes() if not p.zombie}


@pytest.fixture(scope="package")
def server(engine: Path) -> Iterator[Server]:
    """The first boot. `caovanctl top` and the page are open from before it to the end."""
    port, listen = free_port(), f"127.0.0.1:{free_port()}"
    # In mode auto nothing is drafted with this model on the CPU build.
    more = f'[policy]\nmode = "stable"\n[page]\nlisten = "{listen}"'
    with daemon(configuration(engine, "hybrid_copy", port, more)) as one:
        screens = Screens(one, f"http://{listen}")
        one.until_state("SERVING")
        yield Server(one, port)
        tree = {p.pid for p in one.tree()}
        assert one.ctl("stop").returncode == 0
        screens.close("STOPPED")
        assert one.stop() == 0
        assert not tree & {p.pid for p in processes.all_processes() if not p.zombie}
        assert screens.disagreement() == ""
