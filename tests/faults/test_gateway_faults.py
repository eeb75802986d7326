"""Twenty clients of the gateway over a real llama-server that is killed, frozen and restarted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from caovand.engines.llamacpp.tiny_model import tiny_model
from tests.daemon_process import ROOT, Daemon, daemon
from tests.patience import until
from tests.ports import free_port
from tests.scenarios.test_gateway import Client, served

pytestmark = [pytest.mark.engine, pytest.mark.long]
ENGINES = Path(os.environ.get("CAOVAN_TEST_ENGINES", ROOT / ".engines"))
CLIENTS, EACH = 20, 5


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    if not (ENGINES / "current-llamacpp").exists():
        pytest.fail("no llama.cpp to test with: run `make llamacpp` first", pytrace=False)
    model = tmp_path_factory.mktemp("model") / "tiny.gguf"
    model.write_bytes(tiny_model())
    text = f"""
[model]
path = "{model}"
[server]
port = {free_port()}
[gateway]
listen = "127.0.0.1:{free_port()}"
[watch]
hang_s = 15
confirm_s = 5
"""
    with daemon(text, {"CAOVAN_ENGINES": str(ENGINES)}) as started:
        yield started


@pytest.mark.parametrize("what", ["kill", "freeze", "restart"])
def test_every_client_has_its_answer_or_one_error_of_the_protocol(one: Daemon, what: str) -> None:
    one.until_state("SERVING")
    with ThreadPoolExecutor(CLIENTS) as pool:
        client = Client(served(one), pool, "tiny")
        client.begun.clear()
        # Each is another request: one that comes again after a death would be tried alone.
        chats = [client.chat(f"{what} {n}") for n in range(CLIENTS * EACH)]
        until(lambda: len(client.begun) > CLIENTS, "streams")
        if what == "restart":
            assert one.ctl("restart").returncode == 0
        else:
            os.kill(
                one.status()["engine_pid"], signal.SIGKILL if what == "kill" else signal.SIGSTOP
            )
        last: list[Any] = [chat.result()[-1] for chat in chats]
    errors = [end["error"]["code"] for end in last if end != "[DONE]"]

    def empty() -> bool:
        gateway = one.status()["gateway"]
        return bool(gateway["waiting"] == gateway["at_engine"] == 0)

    until(empty, "a gateway that has forgotten none")
    if what == "restart":
        assert errors == []
    else:
        assert set(errors) <= {"engine_ended"}
        assert len(errors) < CLIENTS, "only what had begun"
