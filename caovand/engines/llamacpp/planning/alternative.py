"""llama.cpp as an alternative for a model that another engine cannot serve, or serves slowly."""

from __future__ import annotations

from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import Gpu, Host, ModelCard
from caovand.engines.common.gguf.converted import TYPE, offer_gguf
from caovand.engines.llamacpp.planning.cards import OLDEST_BUILT


def alternative(
    model: ModelCard, gpus: tuple[Gpu, ...], host: Host, tokens_s: float
) -> tuple[CheckResult, ...]:
    """Offer it on the cards that caovan builds it for; on a processor only if there are no older
    cards."""
    cards = tuple(gpu for gpu in gpus if gpu.compute_capability >= OLDEST_BUILT)
    if gpus and not cards:
        return ()
    return offer_gguf("llama.cpp", model, cards, host, tokens_s, _how)


def _how(name: str) -> str:
    return (
        f"search the hub for {name}-GGUF, then: sudo caovanctl engine install --kind llamacpp;"
        f" sudo caovanctl model pull OWNER/NAME:{TYPE}"
    )
