"""A daemon whose engine's port another process takes over: that process gets no request and no
key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.test_peers import Server
from tests.daemon_process import daemon
from tests.patience import until
from tests.scenarios.test_supervision import configuration, model  # noqa: F401  (a fixture)
from tests.secret_files import secret_file


@pytest.mark.long
def test_a_stranger_on_the_port_of_a_serving_engine_is_named_and_waited_for(
    model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    secret_file(tmp_path / "key", "sesame-4711\n")
    watch = "idle_probe_s = 5\nstable_after_s = 3600"
    config = configuration(model, watch=watch, server=f'api_key_file = "{tmp_path}/key"')
    with daemon(config) as one:
        served = one.until_state("SERVING")
        port = int(served["served"]["url"].rpartition(":")[2].partition("/")[0])
        until(
            lambda: one.status()["figures"]["running"] is not None, "counters: the engine is asked"
        )
        stranger = Server(tmp_path / "heard", port)
        try:
            reason = one.until_state("HOLD")["reason"]
            assert f"port {port}" in reason
            assert f"(pid {stranger.pid})" in reason
            texts = one.events()
            assert any(text.startswith("skipped an engine check: cannot share") for text in texts)
            failure = one.status()["last_failure"]
            assert failure["failure"] == "port-busy"
            assert stranger.heard == b""
        finally:
            stranger.kill()
        one.ctl("start", "--no-wait")
        one.until_state("SERVING")
        assert one.status()["engine_pid"] != served["engine_pid"]
