"""The cost of attention per step: reading the cache, and the products of a long prompt.

On Turing the three kernels differ widely in the share of bandwidth and arithmetic that they reach.
Our kernel's figures are modelled by csrc/card_model, not measured: decoding at 131,072 keys, slowed
by the 23 % by which the model overestimates such kernels; prompts of 2,048 tokens behind 30,720,
where the model agrees with a kernel that others measured. vLLM's Triton kernel is slower than ours
by the smallest ratio seen on an H200 (csrc/NOTEBOOK.md). FlashInfer over fp8 reads 161 GB/s on the
card; its prompt figure is derived from 620 to 669 tokens/s over 240,000 tokens on two cards. Others
measured both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from caovand.core.facts.inventory import ModelCard
from caovand.engines.common.speeds import BANDWIDTH_REACHED
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.kv_cache import FULL, WINDOW, token_bytes


class ReachedShares(NamedTuple):
    """Shares of the card's stated rates: of bandwidth with one query token a sequence and with
    drafts to verify, and of the half-precision product rate with fp32 sums, which is half the
    stated one."""

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
    """The shares that this candidate's attention reaches on a Turing card."""
    if candidate.kernels.flashinfer:
        return FLASHINFER
    kind = candidate.kv_dtype.partition("_")[0]
    kinds = SM75_PLUGIN if candidate.kernels.sm75_attention else TRITON
    return kinds.get(kind, kinds["half"])


@dataclass(frozen=True)
class Attention:
    """Attention of one request on one rank: the bytes that a decode step reads, and the operations
    per pair of query and key. Both are scaled to weights that would take as long."""

    read: float
    pair_flops: float

    @classmethod
    def of(cls, model: ModelCard, candidate: Candidate, cached_tokens: int) -> Attention:
        """Attention for a candidate whose cache holds this many tokens of a request."""
        read = _bytes_read(model, candidate, cached_tokens)
        # On other cards the low rate of the weights covers a prompt's products.
        if not candidate.kernels.turing:
            return cls(read, 0)
        shares = reached_shares(candidate)
        share = shares.verifying if candidate.mtp else shares.decoding
        heads = model.heads * model.head_dim * model.cached_layers.count(FULL)
        flops = 4 * heads / candidate.tensor_parallel / shares.prompts
        return cls(read * BANDWIDTH_REACHED / share, flops)

    def flops(self, prompt: int) -> float:
        """Operations of a whole prompt, in which each token attends to all earlier ones."""
        return self.pair_flops * prompt**2 / 2


def _bytes_read(model: ModelCard, candidate: Candidate, cached_tokens: int) -> float:
    """Bytes of the cache that one request reads in a step on one rank."""
    ranks, layers = candidate.tensor_parallel, model.cached_layers
    whole = sum(kind == FULL for kind in layers)
    read = (
        whole * cached_tokens * token_bytes(model, candidate.kv_dtype, ranks, candidate.activation)
    )
    windows = sum(kind == WINDOW for kind in layers)
    if windows:
        seen = min(cached_tokens, model.sliding_window or cached_tokens)
        each = token_bytes(model, candidate.kv_dtype, ranks, candidate.activation, WINDOW)
        read += windows * seen * each
    return float(read)
