"""The dense model on one node, shared by the tests of this folder, none of which disturbs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon_process import Daemon, daemon
from tests.ports import free_port
from tests.real_engine import configuration, found_out

# Sums in another order round otherwise: in float32 no greedy token of a tiny model is that near.
EXACT = '[policy]\ndtype = "float32"\nmtp = 0\n'
# oneDNN keeps 1024 kernels, one for each shape: a soak of a minute sees only how they become more.
FORGETS = 'env = { ONEDNN_PRIMITIVE_CACHE_CAPACITY = "1" }'


@pytest.fixture(scope="package")
def exact(engine: Path) -> Iterator[tuple[Daemon, int]]:
    """A daemon that serves it, and the engine's port."""
    port = free_port()
    config = configuration(engine, "dense", port, EXACT).replace("[watch]", f"{FORGETS}\n[watch]")
    with daemon(config, found_out=found_out(engine)) as one:
        one.until_state("SERVING")
        yield one, port
