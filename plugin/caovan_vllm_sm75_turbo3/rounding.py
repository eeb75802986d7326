"""Decide from facts which weights become int8. Pure, like `dispatch`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .dispatch import card_refusal, switch

TYPES = ("off", "int8")
PLAIN_METHODS = ("UnquantizedEmbeddingMethod", "UnquantizedLinearMethod")
SPECIAL_ROWS = 512  # at the end of a vocabulary: markers of turns, thoughts and tools
MIN_ROWS = 64  # per launch
MULTIPLE = 64  # of the hidden size


@dataclass(frozen=True)
class LmHeadFacts:
    """An lm_head and its machine; the first four fields as in `Facts`."""

    platform: str
    capability: tuple[int, int] | None
    library_error: str | None
    forced: bool
    dtype: str
    head_dtype: str  # of the logits
    method: str  # vLLM's quantisation method class
    vocabulary: int  # on this rank, including padding
    hidden: int
    tied: bool = False  # the weight also serves as the embedding
    adapters: bool = False
    draft_copy: str | None = None  # vLLM's own quantised copy for drafts
    batch_invariant: bool = False
    load_format: str = "auto"


def lm_head_wanted(environment: Mapping[str, str], config: Mapping[str, object]) -> str:
    """The operator's choice for the lm_head: "off" (16 bits) or "int8".

    The value is CAOVAN_LM_HEAD, else `caovan_lm_head` in additional_config, else off, because int8
    rounds; off if all kernels are off. Raises ValueError for an unknown word.
    """
    return switch("CAOVAN_LM_HEAD", TYPES, "off", environment, config)


def drafter_wanted(environment: Mapping[str, str], config: Mapping[str, object]) -> str:
    """The operator's choice for an MTP layer, by CAOVAN_DRAFTER in the same way.

    Drafts are verified: it affects how many are accepted, but no answer.
    """
    return switch("CAOVAN_DRAFTER", TYPES, "off", environment, config)


def lm_head_refusal(facts: LmHeadFacts) -> str | None:
    """The reason why this lm_head stays in 16 bits; None if the kernel accepts it."""
    card = card_refusal(facts.platform, facts.capability, facts.library_error, facts.forced)
    if card:
        return card
    if facts.method not in PLAIN_METHODS:
        return f"its weights are quantised already ({facts.method})"
    if facts.tied:
        return "its weights are shared with the embedding, which is looked up in 16 bits"
    if facts.dtype != "float16" or facts.head_dtype != "float16":
        return (
            f"activations are {facts.dtype} and logits {facts.head_dtype}, but the kernel "
            "accepts only float16; use --dtype half"
        )
    if facts.vocabulary < MIN_ROWS or facts.hidden % MULTIPLE:
        return (
            f"it has {facts.vocabulary} rows of {facts.hidden}, but the kernel needs at least "
            f"{MIN_ROWS} rows, of a multiple of {MULTIPLE}"
        )
    if facts.adapters:
        return "LoRA adapters can change it (--enable-lora)"
    if facts.draft_copy:
        return f"drafts have a copy of it in {facts.draft_copy} (draft_lm_head_quantization)"
    if facts.batch_invariant:
        return "VLLM_BATCH_INVARIANT is set, and large batches are multiplied otherwise"
    if facts.load_format == "ipc_cache":
        return "another process loads its weights (--load-format ipc_cache)"
    return None


def draft_vocabulary(environment: Mapping[str, str], config: Mapping[str, object]) -> int:
    """Number of tokens, from id 0 up, that drafts on an int8 lm_head consider along with special
    tokens; 0 for all.

    The value is CAOVAN_DRAFT_VOCABULARY, else `caovan_draft_vocabulary` in additional_config.
    Tokenizers number tokens by frequency. Raises ValueError for an invalid number.
    """
    where, wanted = "CAOVAN_DRAFT_VOCABULARY", environment.get("CAOVAN_DRAFT_VOCABULARY")
    if wanted is None:
        where, wanted = "caovan_draft_vocabulary", str(config.get("caovan_draft_vocabulary", 0))
    if not wanted.isdecimal() or 0 < int(wanted) < MIN_ROWS:
        raise ValueError(f"cannot use {where} = {wanted!r}: it must be 0, or {MIN_ROWS} or more")
    return int(wanted)


def drafted_rows(count: int, vocabulary: int, start: int, end: int) -> list[tuple[int, int]]:
    """Rows of the shard with ids `start` to `end` that drafts need, in ranges of at least 64."""
    size = end - start
    parts = [(0, count), (vocabulary - SPECIAL_ROWS, vocabulary)]
    found = []
    for first, last in parts:
        lower, upper = max(first - start, 0), min(last - start, size)
        if lower < upper:
            lower = max(0, min(lower, size - MIN_ROWS))
            found.append((lower, min(size, max(upper, lower + MIN_ROWS))))
    if len(found) == 2 and found[0][1] >= found[1][0]:
        return [(found[0][0], found[1][1])]
    return found
