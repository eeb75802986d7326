"""One card: what caovan's kernels and the prefix cache gain and cost in long contexts, in one run.

Meant for CAOVAN_CARDS_GRAPHS=1. Each way is a test of its own, so that a run that is cut short has
the figures of those before.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cards.conftest import long_model, running, serves, shown
from tests.cards.server import LONG, Server, configured, speeds
from tests.ports import free_port

CONTEXT, LONGER = 131_072, 100_000
NO_CACHE = "--no-enable-prefix-caching"
FOUND: dict[str, dict[str, float]] = {}


@pytest.fixture(scope="module")
def server(cards: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A daemon that serves the hybrid with room for the longer turns."""
    port, path = free_port(), long_model(tmp_path_factory.mktemp("model"), CONTEXT)
    with running(configured(port, path=path, context=CONTEXT)) as one:
        serves(one)
        yield Server(one, port, path, CONTEXT)


def measured(server: Server, way: str) -> dict[str, float]:
    """The speeds of what serves now, also in per cent of the first way's."""
    shown(server.daemon, "status")
    FOUND[way] = speeds(server, way, (LONG, LONGER))
    first = next(iter(FOUND.values()))
    parts = (f"{name} {value / first[name]:.1%}" for name, value in FOUND[way].items())
    print(f"{way} / {next(iter(FOUND))}: {', '.join(parts)}", flush=True)
    return FOUND[way]


def test_second_turns_with_caovans_kernels_and_the_cache(server: Server) -> None:
    found = measured(server, "kernels on")
    for length in (LONG, LONGER):
        assert found[f"second turn {length:,} s"] < found[f"first turn {length:,} s"] / 2


def test_the_price_of_the_prefix_cache(server: Server) -> None:
    server.reloads(NO_CACHE)
    found = measured(server, "kernels on, no prefix cache")
    for length in (LONG, LONGER):
        assert found[f"second turn {length:,} s"] > found[f"first turn {length:,} s"] / 2


def test_vllms_own_kernels(server: Server) -> None:
    server.reloads(CAOVAN_KERNELS="off")
    found = measured(server, "kernels off")
    for length in (LONG, LONGER):
        assert found[f"second turn {length:,} s"] < found[f"first turn {length:,} s"] / 2
