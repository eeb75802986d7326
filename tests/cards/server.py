"""The tests' daemon on one card with the hybrid model, and its clients."""

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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from caovand.lab.core.fieldtest.trials import FORCE
from tests.cards.conftest import CARD, OUR_KERNELS, configuration, serves
from tests.daemon_process import Daemon
from tests.patience import PATIENCE_S, until

DRAWN = itertools.count(1)
LONG, NEW, SHORT, DECODED = 25_000, 364, 4_096, 128


@dataclass(frozen=True)
class Streamed:
    """An answer as it came: seconds since it was asked for, of each part, and its tokens."""

    parts: list[tuple[float, int]]
    tokens: list[int]
    logprobs: list[float]
    begun: float
    """By the monotonic clock."""


@dataclass(frozen=True)
class Server:
    """A daemon that serves the hybrid on its port."""

    daemon: Daemon
    port: int
    path: Path | None = None
    context: int | None = None

    def reloads(self, *args: str, **env: str) -> dict[str, Any]:
        """Serve this plan, by `reload` where another one serves."""
        text = configured(self.port, *args, path=self.path, context=self.context, **env)
        self.daemon.config_path.write_text(text)
        assert self.daemon.ctl("reload").returncode == 0
        return serves(self.daemon)

    def answer(
        self, prompt: Sequence[int], tokens: int = 1, **more: Any
    ) -> tuple[float, dict[str, Any]]:
        """Seconds until so many tokens are there, and the answer; `more` goes into the request."""
        begun = time.monotonic()
        found = complete(self.port, prompt, tokens, **more)
        return time.monotonic() - begun, found

    def stream(self, prompt: Sequence[int], tokens: int) -> Streamed:
        """So many tokens after this prompt, with the time of each part."""
        found = Streamed([], [], [], time.monotonic())
        asked = request(self.port, prompt, tokens, stream=True)
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            for line in answer:
                data = line.decode().strip()
                if not data.startswith("data: {"):
                    continue  # the end, or a comment that keeps the connection alive
                (choice,) = json.loads(data.removeprefix("data: "))["choices"]
                if ids := choice["token_ids"]:
                    found.parts.append((time.monotonic() - found.begun, len(ids)))
                    found.tokens.extend(ids)
                    found.logprobs.extend(choice["logprobs"]["token_logprobs"])
        assert len(found.tokens) == tokens, f"{len(found.tokens)} of {tokens} tokens; last: {data}"
        return found

    @contextlib.contextmanager
    def busy(self) -> Iterator[list[str]]:
        """While it generates for a client; the list is what became of the request, at the end."""
        outcome: list[str] = []
        client = threading.Thread(target=lambda: outcome.append(self.outcome(drawn(100), 4_000)))
        client.start()
        until(lambda: self.counter("vllm:num_requests_running") > 0, "a request under way")
        yield outcome
        client.join()

    def outcome(self, prompt: Sequence[int], tokens: int = 1) -> str:
        """What becomes of a request while the engine may end."""
        return completed(self.port, prompt, tokens)

    def many(self, count: int, tokens: int) -> float:
        """Tokens a second of so many requests at once, prompts and all."""
        begun = time.monotonic()
        with ThreadPoolExecutor(count) as clients:
            list(clients.map(lambda _: self.answer(drawn(100), tokens), range(count)))
        return count * tokens / (time.monotonic() - begun)

    def counter(self, name: str) -> float:
        """A counter of vLLM's, over its engines."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def request(
    port: int, prompt: Sequence[int], tokens: int = 1, **more: Any
) -> urllib.request.Request:
    """The request for so many tokens after a prompt; `more` goes into it."""
    body = {
        "model": "tiny", "prompt": list(prompt), "max_tokens": tokens, "temperature": 0,
        "ignore_eos": True, "logprobs": 1, "return_token_ids": True,
        "skip_special_tokens": False,  # one without text costs more than it shows: vocabulary.py
        **more,
    }  # fmt: skip
    return urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )


def complete(port: int, prompt: Sequence[int], tokens: int = 1, **more: Any) -> dict[str, Any]:
    """The answer of so many tokens to a prompt; `more` goes into the request."""
    asked = request(port, prompt, tokens, **more)
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        choice: dict[str, Any] = json.load(answer)["choices"][0]
    return choice


def completed(port: int, prompt: Sequence[int], tokens: int = 1) -> str:
    """What becomes of a request: "answered", "HTTP 500" or "cut"."""
    try:
        complete(port, prompt, tokens)
    except urllib.error.HTTPError as problem:
        return f"HTTP {problem.code}"
    except (OSError, http.client.HTTPException):
        return "cut"
    return "answered"


def configured(
    port: int,
    *args: str,
    more: str = "stable_after_s = 2",
    path: Path | None = None,
    context: int | None = None,
    **env: str,
) -> str:
    """The configuration that serves the hybrid, with these flags and variables more."""
    words = ["--max-num-seqs", "8", *OUR_KERNELS, *args]
    env = {FORCE: "1", **env}
    return configuration("hybrid", port, [CARD], words, env, more, path=path, context=context)


def drawn(length: int, seed: int = 0) -> list[int]:
    """A prompt that no other begins like, or the one of this seed."""
    draw = random.Random(seed or -next(DRAWN))
    return [draw.randrange(5, 500) for _ in range(length)]


def speeds(server: Server, way: str, lengths: Sequence[int] = (LONG,)) -> dict[str, float]:
    """Prefill, decode, first and second turns of one way to serve, printed."""
    for length in lengths:
        server.answer(drawn(length), 16)  # compiles what is compiled late
    short = median(server.answer(drawn(SHORT))[0] for _ in range(5))
    found = {f"prefill {SHORT:,} tok/s": SHORT / short}
    for length in lengths:
        turns = []
        for _ in range(3):
            prompt = drawn(length)
            first, _ = server.answer(prompt)
            second, _ = server.answer([*prompt, *drawn(NEW)])
            turns.append((first, second))
        first, second = (median(seconds) for seconds in zip(*turns, strict=True))
        found |= {
            f"prefill {length:,} tok/s": length / first,
            f"first turn {length:,} s": first, f"second turn {length:,} s": second,
        }  # fmt: skip
    begun, generated = (
        median(server.answer(drawn(512), tokens)[0] for _ in range(3))
        for tokens in (1, DECODED + 1)
    )
    found["decode tok/s"] = DECODED / (generated - begun)
    print(
        f"{way}: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True
    )
    return found
