"""`caovanctl launch`: the environment of client programs, and errors before one is started."""

from __future__ import annotations

import http.server
import json
import os
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caovand.cli.common.client_programs import PROGRAMS, ClientEndpoint
from caovand.core.config.rules import LISTENERS
from tests.cli.conftest import Ctl
from tests.cli.fake_daemon import FakeDaemon, status

KEY = "sk-caovan-0123456789abcdef"
MODELS = {"data": [{"id": "tiny", "max_model_len": 32768}, {"id": "other", "max_model_len": 4096}]}


class Server(http.server.ThreadingHTTPServer):
    """An endpoint with a key and a list of models."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models: Any = MODELS
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        known = self.headers["Authorization"] == f"Bearer {KEY}"
        body = json.dumps(self.server.models if known else {}).encode()
        self.send_response(200 if known and self.path == "/v1/models" else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as one:
        thread = threading.Thread(target=one.serve_forever, args=(0.01,))
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def printed(text: str) -> tuple[dict[str, str], list[str]]:
    """The variables and the words of a printed command."""
    words = shlex.split(text)
    assert words.pop(0) == "env"
    env: dict[str, str] = {}
    while "=" in words[0]:
        name, _, env[name] = words.pop(0).partition("=")
    return env, words


@pytest.mark.parametrize("client", sorted(PROGRAMS))
def test_every_client_gets_address_model_and_key(
    client: str, server: Server, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAOVAN_API_KEY", KEY)
    said = ctl("launch", "--print", "--url", f"{server.url}/v1/", client, "--", "-p", "it's")
    assert (said.code, KEY in said.out + said.err) == (0, False)
    env, words = printed(said.out)
    assert words[0] == PROGRAMS[client].name
    assert words[-2:] == ["-p", "it's"]
    told = json.dumps([env, words])
    assert server.url in told
    assert f"{server.url}/v1/v1" not in told
    assert "tiny" in told
    assert "$CAOVAN_API_KEY" in env.values()
    assert KEY not in told


def test_the_context_is_that_of_the_model(server: Server, ctl: Ctl, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    file.chmod(0o600)
    ask = ("--print", "--url", server.url, "--api-key-file", str(file))
    env, words = printed(ctl("launch", "codex", *ask, "--model", "other").out)
    assert "model_context_window=4096" in words
    assert 'model="other"' in words
    env, _ = printed(ctl("launch", "opencode", *ask, "--model", "tiny:high").out)
    config = json.loads(env["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == "caovan/tiny:high"
    models = config["provider"]["caovan"]["models"]
    assert models["tiny:high"]["limit"]["context"] == 32768
    env, _ = printed(ctl("launch", "claude", *ask).out)
    assert env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "32768"
    assert env["ANTHROPIC_API_KEY"] == ""


def test_nothing_is_said_of_a_context_that_is_unknown() -> None:
    for program in PROGRAMS.values():
        run = program.run(ClientEndpoint(url="http://h:1", model="m"))
        assert "0" not in [*run.env.values(), *run.words] or program.name == "claude"
        assert "none" in run.env.values()


def test_open_webui_does_not_take_the_port_that_is_suggested_for_the_gateway() -> None:
    words = PROGRAMS["open-webui"].run(ClientEndpoint(url="http://h:1", model="m")).words
    assert int(words[words.index("--port") + 1]) != dict(LISTENERS)["gateway"]


def test_the_client_becomes_this_process_with_its_variables(
    server: Server, daemon: FakeDaemon, ctl: Ctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The gateway's address comes before the engine's."""
    program = tmp_path / "claude"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CAOVAN_API_KEY", KEY)
    wildcard = server.url.replace("127.0.0.1", "0.0.0.0")
    gateway = {"url": wildcard, "serving": True, "problem": "", "pid": 9}
    daemon.answers["status"] = status(gateway=gateway)
    became: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *given: became.append(given))
    ctl("launch", "claude", "--", "-p", "hello")
    ((path, words, env),) = became
    assert (path, words) == (str(program), ["claude", "-p", "hello"])
    assert env["ANTHROPIC_BASE_URL"] == server.url
    assert env["ANTHROPIC_AUTH_TOKEN"] == KEY
    assert env["PATH"] == str(tmp_path)


def test_nothing_is_started_before_all_is_known_to_work(
    server: Server, daemon: FakeDaemon, ctl: Ctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("it was started"))
    monkeypatch.delenv("CAOVAN_API_KEY", raising=False)
    ask = ("launch", "codex", "--print")
    said = ctl(*ask, "--url", server.url)
    assert (said.code, "the server requires a key" in said.err) == (1, True)
    monkeypatch.setenv("CAOVAN_API_KEY", "wrong")
    assert "the server refuses the key" in ctl(*ask, "--url", server.url).err
    monkeypatch.setenv("CAOVAN_API_KEY", KEY)
    said = ctl(*ask, "--url", server.url, "--model", "gpt-9")
    assert (said.code, "choose one of tiny, other" in said.err) == (1, True)
    assert ctl(*ask, "--url", "server:8080").code == 2
    assert "does not answer" in ctl(*ask, "--url", "http://127.0.0.1:1").err
    server.models = {"data": [{}]}
    assert "lists no model" in ctl(*ask, "--url", server.url).err
    daemon.answers["status"] = status(served=None, state="BACKOFF", gateway=None)
    said = ctl(*ask)
    assert (said.code, "the state is BACKOFF" in said.err) == (3, True)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = ctl("launch", "codex", "--url", server.url)
    assert (said.code, "npm install -g @openai/codex" in said.err) == (1, True)
