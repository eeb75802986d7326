"""Ollama as an alternative for a model on cards that no other engine has code for."""

from __future__ import annotations

from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import Gpu, Host, ModelCard
from caovand.core.facts.shortfalls import oldest_card
from caovand.engines.common.gguf.converted import offer_gguf
from caovand.engines.ollama.probe import HOW


def alternative(
    model: ModelCard, gpus: tuple[Gpu, ...], host: Host, tokens_s: float
) -> tuple[CheckResult, ...]:
    """Ollama on all cards that its CUDA 12 libraries have code for, if CUDA 13 supports none of
    them."""
    if not gpus or any(gpu.compute_capability >= oldest_card("13") for gpu in gpus):
        return ()
    cards = tuple(gpu for gpu in gpus if gpu.compute_capability >= oldest_card("12"))
    return offer_gguf("Ollama", model, cards, host, tokens_s, _how)


def _how(name: str, kind: str) -> str:
    return (
        f"search the hub for {name}-GGUF, then: {HOW};"
        f" sudo caovanctl model pull --from ollama hf.co/OWNER/NAME:{kind};"
        f' set [engine] kind = "ollama" and [model] path = "hf.co/OWNER/NAME:{kind}"'
    )
