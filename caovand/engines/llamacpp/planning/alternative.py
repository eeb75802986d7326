"""llama.cpp as an alternative for a model that another engine cannot serve, or serves slowly."""

from __future__ import annotations

from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import Gpu, Host, ModelCard
from caovand.engines.common.gguf.converted import offer_gguf
from caovand.engines.llamacpp.planning.cards import MIN_CAPABILITY


def alternative(
    model: ModelCard, gpus: tuple[Gpu, ...], host: Host, tokens_s: float
) -> tuple[CheckResult, ...]:
    """llama.cpp on the cards that it can be built for; on the CPU only without older
    cards."""
    cards = tuple(gpu for gpu in gpus if gpu.compute_capability >= MIN_CAPABILITY)
    if gpus and not cards:
        return ()
    return offer_gguf("llama.cpp", model, cards, host, tokens_s, _how)


def _how(name: str, kind: str) -> str:
    return (
        f"search the hub for {name}-GGUF, then: sudo caovanctl engine install --kind llamacpp;"
        f" sudo caovanctl model pull OWNER/NAME:{kind}"
    )
