"""The tokens that a step may process: llama-server does not answer until the step is done."""

from __future__ import annotations

from caovand.core.facts.inventory import Host, ModelCard
from caovand.engines.common.gguf.weights import tokens_computed

STEP_S = 5.0
ON_CARDS, MAX_ON_CARDS = 512, 2048
"""Tokens that cards compute at once, and tokens of a step: all at once if the buffers have room,
and if experts are in host memory, since each step sends them to a card once (gpt-oss-120b on a 3090
read prompts at 380 tokens/s in steps of 512, at 1113 in steps of 2048)."""
MIN_STEP, MAX_STEP = 32, 512


def max_on_cpu(model: ModelCard, host: Host) -> int:
    """Tokens of a step on these cores: a power of two that takes STEP_S seconds at most."""
    rate = tokens_computed(model, host)
    tokens = MIN_STEP
    while tokens * 2 <= min(rate * STEP_S, MAX_STEP):
        tokens *= 2
    return tokens
