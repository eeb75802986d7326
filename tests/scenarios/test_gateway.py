"""The gateway over a whole daemon and a stand-in engine: killed, restarted, stopped."""

from __future__ import annotations

import itertools
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import Daemon, daemon
from tests.kept_sockets import KeptSockets, kept_sockets
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.scenarios.test_supervision import configuration, model

__all__ = ["model"]

PACE_S = 0.05
WORDS = " ".join(f"w{n}" for n in range(60))


class Client:
    """Sends chats to a gateway, each in a thread of its own."""

    def __init__(self, url: str, pool: ThreadPoolExecutor, model: str = "hybrid") -> None:
        self.url, self._pool, self._model = url, pool, model
        self.key = ""
        self.begun: set[int] = set()
        """The streams that have begun since this was cleared, by their numbers."""
        self._numbers = itertools.count()

    @property
    def _headers(self) -> dict[str, str]:
        key = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return {"Content-Type": "application/json", **key}

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as got:
                return got.status, json.loads(got.read())
        except urllib.error.HTTPError as problem:
            return problem.code, json.loads(problem.read())

    def body(self, text: str) -> dict[str, Any]:
        """What asks for a stream."""
        messages = [{"role": "user", "content": text}]
        return {"model": self._model, "messages": messages, "max_tokens": 100, "stream": True}

    def chat(self, text: str = WORDS) -> Future[list[Any]]:
        """The documents of a stream, comments left out."""
        number = next(self._numbers)
        return self._pool.submit(lambda: list(self._events(number, text)))

    def _events(self, number: int, text: str) -> Iterator[Any]:
        request = urllib.request.Request(
            f"{self.url}v1/chat/completions", json.dumps(self.body(text)).encode(),
            self._headers,
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as got:
            for line in got:
                if line.startswith(b"data: "):
                    self.begun.add(number)
                    yield json.loads(line[6:]) if b"[DONE]" not in line else "[DONE]"


def said(events: list[Any]) -> str:
    """The whole text of an answer, which must have its end."""
    *pieces, end = events
    assert end == "[DONE]", end
    return "".join(piece["choices"][0]["delta"]["content"] for piece in pieces).strip()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


def served(one: Daemon) -> str:
    def look() -> str:
        gateway = one.status()["gateway"]
        return gateway["url"] if gateway and gateway["serving"] else ""

    return until(look, "a gateway")


def outlives_the_gateway(one: Daemon, client: Client) -> None:
    """A begun stream ends with an error; who comes after it is answered by the next gateway."""

    def ended() -> int:
        return len(json.loads(one.ctl("requests", "-n", "1000", "--json").stdout))

    before = ended()
    client.begun.clear()
    begun = client.chat()
    until(lambda: client.begun, "a stream")
    os.kill(one.status()["gateway"]["pid"], signal.SIGKILL)
    assert begun.result()[-1]["error"]["code"] == "gateway_died"
    assert said(client.chat("eight").result()) == "eight"
    until(lambda: ended() > before, "the end of that request in a report")
    until(lambda: one.status()["gateway"]["at_engine"] == 0, "an engine without requests")


def refused_and_named(one: Daemon, client: Client) -> None:
    """A request with which two engines end is refused, and the incident names it."""
    client.begun.clear()
    pid = one.status()["engine_pid"]
    os.kill(pid, signal.SIGSTOP)  # what has begun would not be sent again
    killer = client.chat(f"nine {WORDS}")
    until(lambda: one.status()["gateway"]["at_engine"] == 1, "the killer at the engine")
    os.kill(pid, signal.SIGKILL)
    until(lambda: client.begun, "the killer at the next engine")
    pid = one.status()["engine_pid"]
    os.kill(pid, signal.SIGKILL)
    assert killer.result()[-1]["error"]["code"] == "engine_ended"
    until(lambda: one.status()["engine_pid"] != pid, "the news of its death")
    status, found = client.ask("v1/chat/completions", client.body(f"nine {WORDS}"))
    assert (status, found["error"]["code"]) == (422, "ends_engine")
    shape = "POST /v1/chat/completions, "

    def of_the_last_incident() -> str:
        number = json.loads(one.ctl("incidents", "--json").stdout)[-1]["number"]
        return one.ctl("incidents", "show", str(number)).stdout.partition("  request ")[2]

    shown = until(of_the_last_incident, "the request in the incident")
    assert shape in shown
    assert "nine" not in shown.partition("\n")[0]


def outlives_the_daemon(one: Daemon, client: Client, systemd: KeptSockets) -> None:
    """Who comes while no daemon runs waits for the next one, at the socket that systemd keeps.

    The kernel ends engine and gateway with the daemon: a begun stream ends with an error.
    """
    client.begun.clear()
    begun = client.chat()
    until(lambda: client.begun, "a stream")
    one.kill()
    assert begun.result()[-1]["error"]["code"] in ("gateway_ends", "engine_ended")
    waiting = client.chat("ten")
    systemd.restart(one)
    assert said(waiting.result()) == "ten"
    assert list(systemd.kept) == ["gateway"]


def refuses_once_stopped(one: Daemon, client: Client) -> None:
    """Nothing waits for an engine that nobody expects."""
    one.ctl("stop")
    one.until_state("STOPPED")
    until(lambda: client.ask("v1/models")[1]["data"][0]["state"] == "gone", "the news")
    status, found = client.ask("v1/completions", {"model": "hybrid", "prompt": "x"})
    assert (status, found["error"]["code"]) == (503, "no_engine")


def test_no_request_is_lost_while_the_engine_dies_restarts_and_stops(
    model: Path, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """One daemon for nearly all of it: a start costs seconds."""
    listen = f"127.0.0.1:{free_port()}"
    text = configuration(model, {"pace_s": PACE_S}, gateway=f'listen = "{listen}"\ndrain_s = 600')
    with kept_sockets(tmp_path) as systemd, daemon(text, systemd.environ) as one:
        client = Client(served(one), pool)
        early = client.chat("before the engine serves")
        assert client.ask("v1/models")[0] == 200
        assert said(early.result()) == "before the engine serves"
        (listed,) = client.ask("v1/models")[1]["data"]
        assert (listed["id"], listed["state"]) == ("hybrid", "serving")
        assert f"gateway   {client.url}" in one.ctl("status").stdout

        # Killed in mid-stream: an error of the protocol for what has begun, and the whole answer
        # of the next engine for what has not.
        client.begun.clear()
        begun = [client.chat() for _ in range(2)]
        until(lambda: len(client.begun) >= 2, "two streams")
        pid = one.status()["engine_pid"]
        os.kill(pid, signal.SIGSTOP)
        waiting = [client.chat("one two"), client.chat("three four")]
        until(lambda: one.status()["gateway"]["at_engine"] == 4, "four requests at the engine")
        os.kill(pid, signal.SIGKILL)
        for stream in begun:
            assert stream.result()[-1]["error"]["code"] == "engine_ended"
        assert [said(stream.result()) for stream in waiting] == ["one two", "three four"]
        assert one.until_state("SERVING")["restarts"] == 1

        # Restarted: what has begun finishes, what comes meanwhile waits.
        client.begun.clear()
        slow = client.chat()
        until(lambda: client.begun, "a stream")
        assert one.ctl("restart", "--no-wait").returncode == 0
        late = client.chat("five six")
        assert said(slow.result()) == WORDS
        assert said(late.result()) == "five six"
        assert one.until_state("SERVING")["restarts"] == 2

        # Their use and their ends are known, and a key closes the gateway to all others at once.
        def ended() -> list[str]:
            rows = json.loads(one.ctl("requests", "--json").stdout)
            return [row["outcome"] for row in rows if row["path"] == "/v1/chat/completions"]

        until(lambda: sorted(ended()) == [*[""] * 5, *["engine_ended"] * 2], "all requests")
        (used,) = json.loads(one.ctl("key", "list", "--json").stdout)["usage"]
        assert (used["key"], used["requests"]) == ("", 7)
        client.key = one.ctl("key", "add", "alice").stdout.strip()
        until(lambda: client.ask("v1/models")[0] == 200, "the key")
        assert said(client.chat("seven").result()) == "seven"
        assert one.ctl("key", "revoke", "alice").returncode == 0
        until(lambda: client.ask("v1/models")[0] == 401, "the end of the key")
        assert one.ctl("key", "add", "bob").stdout.strip() != client.key
        client.key = one.ctl("key", "add", "carol").stdout.strip()
        until(lambda: client.ask("v1/models")[0] == 200, "another key")

        outlives_the_gateway(one, client)
        refused_and_named(one, client)
        outlives_the_daemon(one, client, systemd)

        refuses_once_stopped(one, client)
