"""The workloads that loads are sized for."""

from __future__ import annotations

from dataclasses import dataclass

from caovand.engines.common.usual_requests import USUAL_REQUESTS
from caovand.engines.sglang.memory.steps import MAX_GRAPH


@dataclass(frozen=True)
class Workload:
    """The requests that a load is sized for, and the contexts that are worth a sacrifice.

    `requests` are answered at once, further ones wait; drafts must leave room for `min_requests`.
    The speed model assumes `users` concurrent users. To reach `sufficient_context`, the weights may
    use fewer bits. For `generous_context` another card is used although the cards are not linked,
    steps are shorter, and the cache is quantised. `request_tokens` are those of a usual request,
    with room for it to grow.
    """

    name: str
    requests: int
    min_requests: int
    users: int
    sufficient_context: int
    generous_context: int
    request_tokens: int

    @property
    def batch(self) -> bool:
        return self.name == "batch"

    @property
    def cached_tokens(self) -> int:
        """Tokens of a usual request in the cache, on average while it is being answered."""
        return USUAL_REQUESTS[self.name].cached_tokens


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("chat", 16, 4, 16, 16384, 32768, 8192),
        Workload("long", 4, 1, 4, 131072, 131072, 131072),
        Workload("batch", 128, 16, MAX_GRAPH, 8192, 8192, 4096),
    )
}
