"""What vLLM needs of the port that a head has just tried with its workers."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from caovand.adapters.link_trial import Door, connect
from tests.daemon_process import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.long]

ENGINE = ROOT / ".engines/current/bin/python"
HERE, ASKS, ANSWERS = "127.0.0.1", b"a" * 32, b"b" * 32
STORE = """
import sys, torch.distributed as d
d.TCPStore("127.0.0.1", int(sys.argv[1]), 1, is_master=True)
print("listens")
"""


async def tried() -> int:
    """A port whose last connection the kernel still remembers (TIME_WAIT)."""
    door = Door(HERE)
    admitting = asyncio.ensure_future(door.admit(ASKS, ANSWERS))
    link, _ = await connect(HERE, door.port, ASKS, ANSWERS)
    other, _ = await admitting
    other.close()  # first, which is what leaves it there
    assert await asyncio.get_running_loop().sock_recv(link, 1) == b""
    link.close()
    door.close()
    return door.port


def test_ranks_can_meet_at_a_port_that_was_just_tried() -> None:
    words = [str(ENGINE), "-c", STORE, str(asyncio.run(tried()))]
    done = subprocess.run(words, capture_output=True, check=False)
    assert done.stdout == b"listens\n", done.stderr.decode()
