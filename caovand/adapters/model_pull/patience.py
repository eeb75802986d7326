"""Which failures are worth a retry, and how long to wait before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from caovand.adapters.model_pull.client import ConnectionCut, HubClient, HubResponse
from caovand.adapters.model_pull.errors import PullError
from caovand.adapters.model_pull.world import World
from caovand.core.model_source import transfer

FEW_ATTEMPTS = 4  # until the first byte, someone is waiting for an answer
T = TypeVar("T")


class Busy(ConnectionCut):
    """The server answered that it is busy."""

    def __init__(self, text: str, retry_after_s: float | None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


def retry_cut(world: World, act: Callable[[], T], cannot: str, attempts: int) -> T:
    """Call `act`, again after each ConnectionCut; raises PullError once retrying is pointless."""
    attempt = 1
    while True:
        try:
            return act()
        except ConnectionCut as cut:
            wait_before_retry(world, cut, attempt, attempts, cannot)
        attempt += 1


def wait_before_retry(
    world: World, cut: ConnectionCut, attempt: int, attempts: int, cannot: str
) -> None:
    """Wait before the next attempt; raise PullError after the last."""
    retry_after_s = cut.retry_after_s if isinstance(cut, Busy) else None
    wait_s = (
        transfer.pause_s(attempt, world.chance(), retry_after_s) if attempt < attempts else None
    )
    if wait_s is None:
        later = f"; the server requests a wait of {retry_after_s:.0f} s" if retry_after_s else ""
        raise PullError(
            cannot,
            f"{cut}, after {attempt} attempts{later}" if attempt > 1 else f"{cut}{later}",
            "check the network, the proxy and the endpoint, then run the same command again: "
            "downloaded data is kept",
        ) from None
    world.say(f"      {cut}; again in {wait_s:.0f} s")
    world.sleep(wait_s)


def require_success(client: HubClient, answer: HubResponse, cannot: str, absent: str) -> None:
    """Raise ConnectionCut if a retry can help, PullError for any other unsuccessful answer."""
    status, hub = answer.status, client.hub
    if status in (200, 206):
        return
    if status in transfer.RETRIED:
        raise Busy(f"HTTP {status}", answer.retry_after_s())
    if status in (401, 403):
        fact = f"{hub.title} requires permission to read it (HTTP {status}), or it does not exist"
        raise PullError(cannot, fact, f"check the name; else {hub.terms}")
    if status in (404, 410):
        raise PullError(cannot, absent, "check the name, --revision and --from")
    raise PullError(
        cannot, f"{hub.title} answers HTTP {status}", "check the endpoint, or try again later"
    )
