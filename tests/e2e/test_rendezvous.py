"""vLLM can use the port that a head has just checked with its workers."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from caovand.adapters.network.port_check import connect, listening
from tests.daemon_process import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.long]

ENGINE = ROOT / ".engines/current/bin/python"
HERE, ASKS, ANSWERS = "127.0.0.1", b"a" * 64, b"b" * 64
STORE = """
import sys, torch.distributed as d
d.TCPStore("127.0.0.1", int(sys.argv[1]), 1, is_master=True)
print("listens")
"""


async def checked() -> int:
    """A port whose last connection the kernel still remembers (TIME_WAIT)."""
    async with listening(HERE, 0, ASKS, ANSWERS) as (_, port):
        assert not (await connect(HERE, port, ASKS, ANSWERS)).failure
        return port


def test_ranks_can_meet_at_a_port_that_was_just_checked() -> None:
    words = [str(ENGINE), "-c", STORE, str(asyncio.run(checked()))]
    done = subprocess.run(words, capture_output=True, check=False)
    assert done.stdout == b"listens\n", done.stderr.decode()
