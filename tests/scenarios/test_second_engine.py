"""The daemon runs an unknown engine by its record alone (`tests.fake_engine`)."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import fake_engine
from tests.daemon_process import Daemon
from tests.patience import until
from tests.ports import free_port

# Only the registry names engines: here it names another.
RUN = (
    "import sys; from caovand.engines import registry;"
    f"registry.MODULES = {{registry.DEFAULT: {fake_engine.__name__!r}}};"
    "from caovand.__main__ import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    model = tmp_path / "model"
    model.mkdir()
    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "vocab_size": 8}
    text = {"architectures": ["Cat"], "model_type": "cat", "max_position_embeddings": 64, **sizes}
    (model / "config.json").write_text(json.dumps(text))
    config = f"""
[model]
path = "{model}"
[server]
port = {free_port()}
[engine]
python = "{sys.executable}"
[watch]
hang_s = 5
confirm_s = 5
"""
    one = Daemon(tmp_path, config)
    one.caovand = [sys.executable, "-c", RUN]
    one.start()
    yield one
    one.stop()


def test_a_second_engine_is_planned_started_proven_watched_healed_and_stopped(
    daemon: Daemon,
) -> None:
    first = daemon.until_state("SERVING")
    assert first["served"]["name"] == "cat"
    assert first["last_failure"]["failure"] == "device-oom-load"
    assert first["last_failure"]["signature"] == "tabby.oom"
    assert first["rungs"] == ["narrow 4"]
    assert first["reported"] == {"ready": True}
    assert [command[-1] for command in daemon.commands()] == ["8", "4"]
    until(
        lambda: daemon.status()["figures"]["totals"]["generation_tokens"], "its counters are read"
    )

    os.kill(first["engine_pid"], signal.SIGKILL)
    until(lambda: daemon.status()["restarts"] == 2, "a new engine")
    assert daemon.until_state("SERVING")["last_failure"]["failure"] == "engine-died"

    url = first["served"]["url"].removesuffix("/v1") + "/complete"
    body = json.dumps({"prompt": [13], "max_tokens": 1}).encode()
    with suppress(OSError):
        urllib.request.urlopen(urllib.request.Request(url, body), timeout=1)
    until(lambda: daemon.status()["failed"].get("hang"), "a hang")
    until(lambda: daemon.status()["restarts"] == 3, "a new engine")
    daemon.until_state("SERVING")

    assert daemon.ctl("stop").returncode == 0
    assert daemon.until_state("STOPPED")["engine_pid"] is None
    assert daemon.tree() == []
