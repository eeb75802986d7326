"""What attention costs a step: the cache that it reads, and products of a long prompt.

On Turing three kernels are far apart in what they reach of bandwidth and arithmetic. Ours are
modelled, not measured, by csrc/card_model: decoding at 131,072 keys, slowed by the 23 % that the
model has such kernels too fast; prompts of 2,048 tokens behind 30,720, where it is right on the
kernel that others measured. vLLM's Triton is slower than ours by the least ratio of an H200
(csrc/NOTEBOOK.md). FlashInfer over fp8 reads 161 GB/s on the card; its prompts are derived from
620 to 669 tokens/s over 240,000 tokens on two cards. Both are others' measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from caovand.core.facts.inventory import ModelCard
from caovand.engines.common.speeds import BANDWIDTH_REACHED
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.kv_cache import FULL, WINDOW, token_bytes


class ReachedShares(NamedTuple):
    """Shares of the stated bandwidth, with one query token a sequence and with drafts to verify,
    and of the rate of half-precision products with fp32 sums, which is half the stated one."""

    decoding: float
    verifying: float
    prompts: float


SM75_PLUGIN = {
    "int4": ReachedShares(0.72, 0.49, 0.79),
    "int8": ReachedShares(0.76, 0.76, 0.77),
    "half": ReachedShares(0.78, 0.78, 0.84),
}
TRITON = {
    "int4": ReachedShares(0.72 / 19, 0.49 / 40, 0.79 / 7.0),
    "int8": ReachedShares(0.76 / 8.6, 0.76 / 9.5, 0.77 / 7.3),
    "half": ReachedShares(0.78 / 4.8, 0.78 / 5.1, 0.84 / 3.3),
}
FLASHINFER = ReachedShares(0.26, 0.26, 0.4)


def reached_shares(candidate: Candidate) -> ReachedShares:
    """What the attention of this candidate reaches on a Turing card."""
    if candidate.flashinfer:
        return FLASHINFER
    kind = candidate.kv_dtype.partition("_")[0]
    kinds = SM75_PLUGIN if candidate.sm75_attention else TRITON
    return kinds.get(kind, kinds["half"])


@dataclass(frozen=True)
class Attention:
    """Of one request on one rank, in what weights would take as long as: the bytes that a decode
    step reads, and the operations of a pair of query and key."""

    read: float
    pair_flops: float

    @classmethod
    def of(cls, model: ModelCard, candidate: Candidate, held: int) -> Attention:
        """Of a candidate whose cache holds so many tokens of a request."""
        read = _bytes_read(model, candidate, held)
        if not candidate.turing:  # elsewhere a prompt's products are within the weights' low rate
            return cls(read, 0)
        shares = reached_shares(candidate)
        share = shares.verifying if candidate.mtp else shares.decoding
        heads = model.heads * model.head_dim * model.cached_layers.count(FULL)
        flops = 4 * heads / candidate.tensor_parallel / shares.prompts
        return cls(read * BANDWIDTH_REACHED / share, flops)

    def flops(self, prompt: int) -> float:
        """Of a whole prompt, every token of which sees those before it."""
        return self.pair_flops * prompt**2 / 2


def _bytes_read(model: ModelCard, candidate: Candidate, held: int) -> float:
    """Bytes of the cache that one request reads in a step on one rank."""
    ranks, layers = candidate.tensor_parallel, model.cached_layers
    whole = sum(kind == FULL for kind in layers)
    read = whole * held * token_bytes(model, candidate.kv_dtype, ranks, candidate.activation)
    windows = sum(kind == WINDOW for kind in layers)
    if windows:
        seen = min(held, model.sliding_window or held)
        each = token_bytes(model, candidate.kv_dtype, ranks, candidate.activation, WINDOW)
        read += windows * seen * each
    return float(read)
