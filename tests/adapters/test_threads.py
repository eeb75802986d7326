"""Calls that never return: they block no other thread and do not keep the daemon from ending."""

from __future__ import annotations

import subprocess
import sys

HUNG = """
import asyncio, threading
from caovand.adapters.system.threads import Threads

async def main():
    asyncio.get_running_loop().set_default_executor(Threads())
    hung = [asyncio.ensure_future(asyncio.to_thread(threading.Event().wait)) for _ in range(50)]
    print(await asyncio.to_thread(lambda: "answered"))
    try:
        await asyncio.to_thread(int, "x")
    except ValueError:
        print("refused")
    for task in hung:
        task.cancel()

asyncio.run(main())
"""


def test_calls_that_hang_neither_starve_others_nor_keep_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HUNG], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout.split(), done.stderr) == (["answered", "refused"], "")
    assert done.returncode == 0
