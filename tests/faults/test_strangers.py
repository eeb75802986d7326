"""Other users of the machine cannot do anything to the daemon that its owner would notice."""

from __future__ import annotations

import os
import resource
import signal
import socket
from pathlib import Path

import pytest

from tests import strangers
from tests.daemon_process import daemon
from tests.scenarios.test_supervision import configuration

# Of the unit, packaging/systemd/caovan.service.
LIMIT_NOFILE = 131_072
ATTACK_S = 60.0
MAX_MB = 80.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user"),
]


def test_a_minute_of_attacks_leaves_the_daemon_and_its_engine_as_they_were(model: Path) -> None:
    text = configuration(model)
    port = int(text.split("port = ")[1].split()[0])
    with daemon(text) as one:
        assert one.process is not None
        limit = min(LIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        before = one.until_state("SERVING")
        figures = strangers.attack(one, port, ATTACK_S)
        print(figures)
        after = one.status()
        assert figures.most_mb < MAX_MB
        assert [after[name] for name in ("state", "generation", "restarts", "failures")] == [
            before[name] for name in ("state", "generation", "restarts", "failures")
        ]
        # What they put into the log is read when the engine fails.
        os.kill(after["engine_pid"], signal.SIGKILL)
        until_later = one.until_state("SERVING")
        while until_later["generation"] == after["generation"]:
            until_later = one.until_state("SERVING")
        assert one.ctl("incidents").returncode == 0


def test_a_daemon_with_few_descriptors_outlives_a_crowd(model: Path) -> None:
    """Also of its own group: libzmq ends the process that runs out of them."""
    with daemon(configuration(model)) as one:
        assert one.process is not None
        one.until_state("SERVING")
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        crowd = []
        for name in ("control", "events", "status") * 300:
            link = socket.socket(socket.AF_UNIX)
            link.connect(str(one.folder / "run" / name))
            crowd.append(link)
            if name != "status":
                link.send(strangers.ZMTP)
        for link in crowd:
            link.close()
        assert one.until_state("SERVING")["restarts"] == 0
