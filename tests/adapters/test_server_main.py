"""What the processes of the page and the gateway have in common."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from caovand.adapters.servers import server_main
from caovand.adapters.servers.server_process import READY


def test_what_a_server_is_made_of_is_collected_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    async def nobody(listener: socket.socket) -> None:
        return None

    thresholds = gc.get_threshold()
    assert gc.get_freeze_count() == 0
    try:
        with socket.socket() as listener:
            asyncio.run(server_main._serve(nobody, listener))
        assert capsys.readouterr().out == f"{READY}\n"
        assert gc.get_freeze_count() > 1000
        assert len(gc.get_objects()) < 1000
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
