"""What differs between releases of vLLM, and of FlashInfer beneath it, as data in one place.

Which flags an engine takes is asked of its own parser and stands nowhere here; the wordings of its
log are rows in `engines/vllm`. A bound is the first release that behaves as its name says.
"""

from __future__ import annotations

OLDEST_TESTED, NEWEST_TESTED = (0, 21), (0, 33)
REFERENCE = (0, 21, 0)
"""What is assumed of an engine that was not asked."""
TOKENS_BY_REQUEST = (0, 20)
"""The cache size is reported by what requests of full length take, not by blocks and groups."""
GRAPHS_SUBTRACTED = (0, 21)
"""The memory of CUDA graphs is taken off before the cache is sized."""
FLASHINFER_REFUSES_SM75 = (0, 22)
"""FlashInfer's attention is for SM80 and newer, but for a plugin that offers it again."""
TRITON_REFUSES_FP8 = (0, 22)
"""Triton's attention refuses every fp8 cache before SM89; 0.21 lets it begin and then has no kernel
for fp8_e4m3."""
HELD_BLOCK = (0, 22)
"""One block of the cache is held back."""
PREFIX_CACHING_ALIGNS = (0, 22)
"""A hybrid model's prefix caching is on, in mode align, unless it is told otherwise."""
STATES_IN_STEPS = (0, 32)
"""A step may be shorter than a block; releases before refuse that with prefix caching."""
STATES_BY_THEMSELVES = (0, 33)
"""States are kept at block borders without --mamba-cache-mode, which 0.32 was the last to take."""
EXPERTS_BY_FLAG = (0, 32)
"""VLLM_USE_FLASHINFER_MOE_* are gone: --moe-backend chooses expert kernels. By default Triton comes
before FlashInfer on Hopper, and FlashInfer is out where neither nvcc nor its cubins are there."""
DRAFTS_KEEP_STATES = (0, 32)
"""Requests of a hybrid model that draft go on from right states. Before, three things spoil them
silently: a hit of the prefix cache may be a block longer for the states than for the attention,
which then lacks that block (vllm#43559, its cause in vllm#46281; one request alone meets it when
its prompt parts from an earlier one, or goes on from one, in the block behind the last that counts
for both); prompts that share a step may end it between block borders, where the prefix cache then
keeps a wrong state (vllm#43559); and under asynchronous scheduling a request whose row of the batch
moves is given another row's number of accepted drafts (vllm#51571). 0.32 has neither of the first
two, and 0.28 still had one (vllm#53912); the third is only in Model Runner V1, which 0.32 does not
use by itself."""
BROKEN_FLASHINFER = ((0, 6, 11), (0, 6, 15))
"""From and to: attention with 256-wide heads fails to build for SM75."""
MENDED_FLASHINFER = (0, 6, 16)
"""The first that the plugin offers again to releases that refuse these cards."""


def name(release: tuple[int, ...]) -> str:
    """As people write it: "0.32"."""
    return ".".join(map(str, release))
