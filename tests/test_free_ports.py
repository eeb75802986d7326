"""Test ports: no two processes get the same ones, and the kernel assigns them to no other
process."""

from __future__ import annotations

import pytest

from tests import ports


def test_a_block_of_ports_belongs_to_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = [ports.free_port() for _ in range(3)]
    assert len(set(mine)) == 3
    assert max(mine) < ports.first_of_the_kernel()
    # Only the block that this process has is there to be claimed.
    monkeypatch.setattr(ports, "FIRST", ports._block[0])
    with pytest.raises(OSError, match="all 1 blocks"):
        ports.claim_block(ports._block[-1] + 1)
