"""The usual request of each workload, by which engines' plans are compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UsualRequest:
    """Tokens of a usual prompt and its answer."""

    prompt: int
    answer: int

    @property
    def cached_tokens(self) -> int:
        """Tokens that the cache holds on average while the request is being answered."""
        return self.prompt + self.answer // 2


WITHOUT_PREFIXES = 1.25
"""The factor by which a batch must finish more requests per second to justify giving up a prefix
cache.
"""
USUAL_REQUESTS = {
    "chat": UsualRequest(4096, 500),
    "long": UsualRequest(100_000, 1000),
    "batch": UsualRequest(2048, 500),
}
