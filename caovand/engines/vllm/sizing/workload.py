"""The workloads that a plan is made for: a usual request, and how many users ask at once."""

from __future__ import annotations

from dataclasses import dataclass

from caovand.engines.common.usual_requests import USUAL_REQUESTS, UsualRequest


@dataclass(frozen=True)
class Workload(UsualRequest):
    """A usual request, and how many users ask at once; a batch, which nobody waits for, counts by
    throughput alone."""

    users: int
    batch: bool = False

    @property
    def length(self) -> int:
        """Tokens of a usual request."""
        return self.prompt + self.answer

    @property
    def long(self) -> bool:
        """Whether prompts are long, and one of them keeps the cards busy."""
        return self.users == 1

    @property
    def let_in(self) -> int:
        """Tokens of the requests that determine the number of sequences: usual requests of people
        who chat, half as long where lengths differ and vLLM admits no more than the cache holds."""
        return self.cached_tokens // 2 if self.batch or self.long else self.cached_tokens


USERS = {"chat": 2, "long": 1, "batch": 1024}
WORKLOADS = {
    name: Workload(usual.prompt, usual.answer, USERS[name], batch=name == "batch")
    for name, usual in USUAL_REQUESTS.items()
}
