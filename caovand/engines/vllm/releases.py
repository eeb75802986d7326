"""Differences between releases of vLLM, and of FlashInfer and Ray beneath it, in one place.

An engine's flags come from its own parser, not from here; the wordings of its log are rows in
`engines/vllm/log`. Each bound is the first release that behaves as the name says.
"""

from __future__ import annotations

from caovand.core.facts.inventory import EngineInfo
from caovand.core.problem import Problem

OLDEST_TESTED, NEWEST_TESTED = (0, 21), (0, 33)
REFERENCE = (0, 33, 0)
"""The release that `engine install` installs for CUDA, and that is assumed for an engine that was
not probed.
"""
TOKENS_BY_REQUEST = (0, 20)
"""The cache size is reported by requests of full length, not by blocks and groups."""
GRAPHS_SUBTRACTED = (0, 21)
"""The memory of CUDA graphs is subtracted before the cache is sized."""
FLASHINFER_REFUSES_SM75 = (0, 22)
"""FlashInfer's attention requires SM80, unless a plugin re-enables it."""
TRITON_REFUSES_FP8 = (0, 22)
"""Triton's attention refuses every fp8 cache before SM89; 0.21 accepts it, but has no kernel for
fp8_e4m3."""
RESERVED_BLOCK = (0, 22)
"""One block of the cache is reserved."""
PREFIX_CACHING_ALIGNS = (0, 22)
"""A hybrid model's prefix caching is on by default, in mode align."""
UNIFIED_MEMORY_RELEASED = (0, 24)
"""A load returns memory to the host of unified memory when it is short (vllm#45179). By their
sources 0.21 does not and 0.32 does; the first was named there."""
STEPS_UNDER_WAY_HOLD_WINDOWS = (0, 26)
"""A sliding window's blocks are freed once a step's results are there (vllm#47728), so steps under
way hold theirs, too."""
CACHES_PER_TOKEN_HEAD = (0, 32)
"""Triton's attention keeps int8 and int4 caches with one scale per token and head, in a layout that
the plugin reads; releases between 0.21, which lacks int4, and 0.32 were not checked."""
STATES_IN_STEPS = (0, 32)
"""A step may be shorter than a block; earlier releases refuse that with prefix caching."""
STATES_BY_THEMSELVES = (0, 33)
"""States are kept at block borders without --mamba-cache-mode, a flag that 0.32 was the last to
accept."""
PREFIX_HITS_IN_BLOCKS = (0, 32)
"""--prefix-match-unit: a hybrid model's states are also kept at the last multiple of that many
tokens of each prompt, so that a hit need not end at the border of a block."""
KEEP_ALIVE_LINES = (0, 32)
"""--sse-keep-alive-interval. 0.21 does not have it; releases between were not checked."""
DRAFTS_BY_BATCH = (0, 32)
"""num_speculative_tokens_per_batch_size and enable_adaptive_verification of drafts."""
DRAFTERS_EVERYWHERE = (0, 32)
"""Triton's and FlashInfer's attention read a DFlash drafter's blocks, whose tokens attend to later
ones. By their sources 0.21's do not and 0.32's do; releases between were not checked."""
PCIE_ALL_REDUCE = (0, 33)
"""VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC. 0.32 has it too, with another FlashInfer."""
EXPERTS_BY_FLAG = (0, 32)
"""VLLM_USE_FLASHINFER_MOE_* are gone: --moe-backend chooses expert kernels. By default Triton comes
before FlashInfer on Hopper, except for whole experts in blocks of fp8. FlashInfer is unavailable
without nvcc or its cubins."""
AWQ_EXPERTS_STAY = (0, 22)
"""The workspace of AWQ experts is kept from layer to layer, as for other experts: not yet in 0.21,
but in 0.32; releases between were not checked."""
PACKED_AS_ANY = (0, 32)
"""compressed-tensors' experts may have zero points (vllm#44025), and its integers 2 to 8 bits. 0.21
asserts the first, and supports only 4 and 8 bits; releases between were not checked.
"""
GPTQ_BY_MARLIN = (0, 32)
"""Every GPTQ checkpoint is read for Marlin: 4 or 8 bits, symmetric, groups in order. 0.21 has other
kernels for the rest; releases between were not checked."""
MARLIN_PADS = (0, 24)
"""Weights are padded to whole tiles of Marlin's fp8 kernels (vllm#45295, vllm#45703). By their
sources 0.21 does not and 0.33 does; reports name 0.24 as the first."""
DRAFTS_KEEP_STATES = (0, 32)
"""Drafting requests of a hybrid model keep correct states. Earlier releases corrupt them, silently,
in three ways: a prefix-cache hit may be a block longer for the states than for the attention, which
then lacks that block (vllm#43559, its cause in vllm#46281; a single request is affected if its
prompt diverges from an earlier one, or continues it, in the block after the last that counts for
both); prompts that share a step may end it between block borders, where the prefix cache then keeps
a wrong state (vllm#43559); and under asynchronous scheduling a request whose row of the batch moves
gets another row's number of accepted drafts (vllm#51571). 0.32 has neither of the first two, 0.28
still had one (vllm#53912); the third is only in Model Runner V1, which is not 0.32's default."""
DRAFTS_OVER_STAGES = (0, 32)
"""MTP drafts over pipeline stages (vllm#46994). Earlier releases demand stages of the drafting head
and refuse to start; which release after 0.21 first accepts them was not checked."""
RAY_EXECUTOR_V2 = (0, 21)
"""Ray's actors are vLLM's usual workers, with its own queues between them: RayExecutorV2, which
needs neither Ray's compiled graphs nor cupy. Earlier releases were not checked."""
RAY_HAS_TOKENS = (2, 52)
"""Ray can require a token from every client. Earlier releases of Ray ignore RAY_AUTH_MODE, and run
the code of anyone who reaches their ports.
"""
DRAFTS_IN_WHOLE_GRAPHS = (0, 22)
"""FlashInfer's attention is captured with drafts; before, vLLM cuts the graphs there."""
LATENT_IN_WHOLE_GRAPHS = (0, 32)
"""TRITON_MLA is captured whole, and verifies drafts as it decodes. By their sources 0.21 does
neither and 0.32 both; releases between were not checked."""
DELTA_NET_NOT_BY_NVCC = (0, 22)
"""FlashInfer's Gated DeltaNet for Hopper need not be compiled by nvcc: 0.21's is, 0.33's is not."""
THOUGHTS_BY_TEXT = (0, 32)
"""Parsers find the marks of thoughts in text where the tokenizer has no token for them. 0.21 fails
such chats, and those of Mistral's parser with another tokenizer than Mistral's; releases between
were not checked."""
BROKEN_FLASHINFER = ((0, 6, 11), (0, 6, 15))
"""The first and the last release whose attention with 256-wide heads fails to build for SM75."""
REPAIRED_FLASHINFER = (0, 6, 16)
"""The first release that the plugin offers to vLLM releases that refuse these cards."""


def name(release: tuple[int, ...]) -> str:
    """The usual spelling: "0.32"."""
    return ".".join(map(str, release))


def untested(engine: EngineInfo) -> Problem | None:
    """The note that nobody tried caovan with this release; None within the range that was tried."""
    if OLDEST_TESTED <= engine.release[:2] <= NEWEST_TESTED:
        return None
    return Problem(
        "",
        f"vLLM {engine.version} is outside what caovan was tested with"
        f" ({name(OLDEST_TESTED)} to {name(NEWEST_TESTED)})",
        f"sudo caovanctl engine install {name(REFERENCE)}",
    )
