"""How many tokens a step may process: llama-server answers nothing until it is done."""

from __future__ import annotations

from caovand.core.facts.inventory import Host, ModelCard
from caovand.engines.common.gguf.slots import active_weights
from caovand.engines.common.processors import core_of

STEP_S = 5.0
ON_CARDS, MAX_ON_CARDS = 512, 2048
"""Tokens that cards compute at once, and of a step: all at once where the buffers have room, and
where experts are in host memory, which are sent to a card once for each (gpt-oss-120b on a 3090
read prompts at 380 tokens/s in 512, at 1113 in 2048)."""
MIN_STEP, MAX_STEP = 32, 512


def on_processor(model: ModelCard, host: Host) -> int:
    """Tokens of a step on these cores: a power of two that takes STEP_S seconds at most."""
    rate = host.cpus * core_of(host).gflop_s * 1e9 / max(2 * active_weights(model), 1.0)
    tokens = MIN_STEP
    while tokens * 2 <= min(rate * STEP_S, MAX_STEP):
        tokens *= 2
    return tokens
