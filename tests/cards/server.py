"""The daemon of tests on one card that serves the hybrid, and clients of it."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from caovand.lab.core.fieldtest.trials import FORCE
from tests.cards.conftest import CARD, OUR_KERNELS, configuration, serves
from tests.daemon_process import Daemon
from tests.patience import PATIENCE_S, until

DRAWN = itertools.count(1)


@dataclass(frozen=True)
class Server:
    """A daemon that serves the hybrid on its port."""

    daemon: Daemon
    port: int

    def reloads(self, *args: str, **env: str) -> dict[str, Any]:
        """Serve this plan, by `reload` where another one serves."""
        self.daemon.config_path.write_text(configured(self.port, *args, **env))
        assert self.daemon.ctl("reload").returncode == 0
        return serves(self.daemon)

    def answer(self, prompt: Sequence[int], tokens: int = 1) -> tuple[float, dict[str, Any]]:
        """Seconds until so many tokens are there, and the answer."""
        body = {
            "model": "tiny", "prompt": list(prompt), "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "logprobs": 1, "return_token_ids": True,
        }  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        begun = time.monotonic()
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            found = json.load(answer)
        return time.monotonic() - begun, found["choices"][0]

    @contextlib.contextmanager
    def busy(self) -> Iterator[list[str]]:
        """While it generates for a client; the list is what became of the request, at the end."""
        outcome: list[str] = []
        client = threading.Thread(target=lambda: outcome.append(self.outcome(drawn(100), 4_000)))
        client.start()
        until(lambda: self._counter("vllm:num_requests_running") > 0, "a request under way")
        yield outcome
        client.join()

    def outcome(self, prompt: Sequence[int], tokens: int = 1) -> str:
        """What becomes of a request while the engine may end."""
        try:
            self.answer(prompt, tokens)
        except urllib.error.HTTPError as problem:
            return f"HTTP {problem.code}"
        except (OSError, http.client.HTTPException):
            return "cut"
        return "answered"

    def _counter(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def configured(port: int, *args: str, more: str = "stable_after_s = 2", **env: str) -> str:
    """The configuration that serves the hybrid, with these flags and variables more."""
    words = ["--max-num-seqs", "8", *OUR_KERNELS, *args]
    return configuration("hybrid", port, [CARD], words, {FORCE: "1", **env}, more)


def drawn(length: int, seed: int = 0) -> list[int]:
    """A prompt that no other begins like, or the one of this seed."""
    draw = random.Random(seed or -next(DRAWN))
    return [draw.randrange(5, 500) for _ in range(length)]
