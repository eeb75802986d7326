"""Decide from facts which kernels may run. Pure: no torch, no vLLM, no environment, no log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

KERNELS = ("off", "prefill", "decode", "all")
MAX_SPEC_TOKENS = 7  # gdn_decode takes 8 new tokens per sequence
ATTENTION = ("off", "decode", "read", "all")
MAX_QUERY_TOKENS = 8  # per sequence that decodes or verifies
MAX_EXTEND_TOKENS = 512  # attention_decode's maximum per sequence
SPLIT_SHARE = 0.4
"""Share of the card's multiprocessors: an extension with at most this many prefill CTAs is split
over its keys."""
CACHES = ("auto", "float16", "fp8", "fp8_e4m3", "int8_per_token_head", "int4_per_token_head")


@dataclass(frozen=True)
class Facts:
    """A Gated DeltaNet layer and its machine."""

    platform: str  # vLLM's name: "cuda", "cpu", ...
    capability: tuple[int, int] | None
    dtype: str  # of the activations, by torch's name without "torch."
    conv_dtype: str
    state_dtype: str
    k_heads: int  # on this rank
    v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_width: int
    activation: str
    spec_tokens: int  # draft tokens per step
    overlapped_batches: bool = False  # micro-batches on separate streams
    library_error: str | None = None
    forced: bool = False  # for tests: any card from SM75 up


def kernels_wanted(environment: str | None, config: Mapping[str, object]) -> str:
    """Kernels that the operator wants: CAOVAN_KERNELS, else `caovan_kernels`, else all.

    `caovan: false` in additional_config disables everything; `caovan_mode` (auto, stable, fast) is
    for the planner and affects no kernel. Raises ValueError for an unknown word.
    """
    if environment is None and (on := config.get("caovan", True)) is not True:
        if on is not False:
            raise ValueError(f"cannot use caovan = {on!r}: it must be true or false")
        return "off"
    where, wanted = "caovan_kernels", config.get("caovan_kernels", "all")
    if environment is not None:
        where, wanted = "CAOVAN_KERNELS", environment
    if wanted not in KERNELS:
        raise ValueError(f"cannot use {where} = {wanted!r}: it must be one of {', '.join(KERNELS)}")
    return str(wanted)


def switch(
    variable: str,
    words: Sequence[str],
    default: str,
    environment: Mapping[str, str],
    config: Mapping[str, object],
) -> str:
    """A switch's value: from the variable, else from its key in additional_config.

    The key is the variable in lower case. The value is "off" if all kernels are off. Raises
    ValueError for an unknown word.
    """
    if kernels_wanted(environment.get("CAOVAN_KERNELS"), config) == "off":
        return "off"
    where, wanted = variable, environment.get(variable)
    if wanted is None:
        where = variable.lower()
        wanted = str(config.get(where, default))
    if wanted not in words:
        raise ValueError(f"cannot use {where} = {wanted!r}: it must be one of {', '.join(words)}")
    return wanted


def not_cuda(platform: str) -> str:
    """vLLM's platform instead of CUDA, in words; `platform` is empty without any device."""
    return f"this is vLLM's {platform} build" if platform else "vLLM finds no GPU here"


def card_refusal(
    platform: str, capability: tuple[int, int] | None, library_error: str | None, forced: bool
) -> str | None:
    """The reason why no caovan kernel may run on this card, or None; arguments as in `Facts`."""
    if platform != "cuda":
        return f"{not_cuda(platform)}, but the kernels are for CUDA"
    if capability is None or capability < (7, 5):
        return f"the GPU is {_sm(capability)}, but the kernels need SM75"
    if capability != (7, 5) and not forced:
        return (
            f"the GPU is {_sm(capability)}, which runs vLLM's own kernels "
            "(CAOVAN_SM75_FORCE=1 forces ours)"
        )
    return library_error


def refusal(facts: Facts) -> str | None:
    """The reason why this layer stays on vLLM's own path; None if the kernels accept it."""
    card = card_refusal(facts.platform, facts.capability, facts.library_error, facts.forced)
    if card:
        return card
    if facts.dtype != "float16" or facts.conv_dtype != "float16":
        return (
            f"activations are {facts.dtype} and the conv state {facts.conv_dtype}, but the "
            "kernels accept only float16; use --dtype half"
        )
    if facts.state_dtype != "float32":
        return (
            f"the recurrent state is {facts.state_dtype}, but the kernels store float32; use "
            "--mamba-ssm-cache-dtype float32"
        )
    if facts.head_k_dim != facts.head_v_dim or facts.head_k_dim not in (64, 128):
        return (
            f"head sizes are {facts.head_k_dim} and {facts.head_v_dim}, but the kernels support "
            "64 and 128"
        )
    if facts.k_heads < 1 or facts.v_heads % facts.k_heads:
        return f"{facts.v_heads} value heads are not a multiple of {facts.k_heads} key heads"
    if facts.conv_width != 4:
        return f"the convolution is {facts.conv_width} wide, but the kernels support only 4"
    if facts.activation not in ("silu", "swish"):
        return f"the activation is {facts.activation}, but the kernels support only silu"
    if facts.spec_tokens > MAX_SPEC_TOKENS:
        return (
            f"{facts.spec_tokens} draft tokens per step, but the kernels support at most "
            f"{MAX_SPEC_TOKENS}"
        )
    if facts.overlapped_batches:
        return (
            "micro-batches overlap on their own streams (--enable-dbo, --ubatch-size), "
            "which the decode kernel's counters do not allow"
        )
    return None


@dataclass(frozen=True)
class AttentionFacts:
    """An attention layer and its machine; the first four fields as in `Facts`."""

    platform: str
    capability: tuple[int, int] | None
    library_error: str | None
    forced: bool
    dtype: str
    cache: str  # --kv-cache-dtype
    heads: int  # on this rank
    kv_heads: int
    head_dim: int
    kind: str = "decoder"
    features: tuple[str, ...] = ()  # of the layer, which the kernels lack
    overlapped_batches: bool = False
    context_parallel: bool = False
    batch_invariant: bool = False
    sleeps: bool = False


def attention_wanted(environment: Mapping[str, str], config: Mapping[str, object]) -> str:
    """The operator's choice for attention: "off", "decode" (no prompts), "read" any cache, "all".

    "decode" and "all" also write the packed caches.

    The value is CAOVAN_ATTENTION, else `caovan_attention` in additional_config, else all; off if
    all kernels are off. Raises ValueError for an unknown word.
    """
    return switch("CAOVAN_ATTENTION", ATTENTION, "all", environment, config)


def attention_refusal(facts: AttentionFacts) -> str | None:
    """The reason why this layer stays on vLLM's own attention; None if the kernels accept it."""
    card = card_refusal(facts.platform, facts.capability, facts.library_error, facts.forced)
    if card:
        return card
    if facts.kind != "decoder":
        return f"the layer has the kind {facts.kind}, but the kernels are for decoders"
    if facts.features:
        return f"the layer has {' and '.join(facts.features)}, which the kernels do not support"
    if facts.head_dim not in (128, 256):
        return f"head sizes are {facts.head_dim}, but the attention kernels support 128 and 256"
    if facts.kv_heads < 1 or facts.heads % facts.kv_heads:
        return f"{facts.heads} query heads are not a multiple of {facts.kv_heads} KV heads"
    if facts.cache not in CACHES:
        return f"the cache is {facts.cache}, but the kernels read {', '.join(CACHES)}"
    if facts.dtype != "float16":
        return (
            f"activations are {facts.dtype}, but the kernels accept only float16; use --dtype half"
        )
    if facts.overlapped_batches:
        return "micro-batches overlap on their own streams, and would share scratch memory"
    if facts.context_parallel:
        return "a context is split between cards (--decode-context-parallel-size)"
    if facts.batch_invariant:
        return "VLLM_BATCH_INVARIANT is set, and the kernels split by the size of a batch"
    if facts.sleeps:
        return "--enable-sleep-mode discards memory that the kernels rely on"
    return None


class Launch(NamedTuple):
    """A launch of an attention kernel, and the sequences of the batch that it covers."""

    kernel: str  # "decode", "extend" (both attention_decode) or "prefill"
    first: int
    last: int  # exclusive
    tokens: int  # maximum per sequence


def prefill_ctas(tokens: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """CTAs of the prefill kernel for a sequence with this many new tokens."""
    rows = 128 * 256 // head_dim
    return -(-tokens * (heads // kv_heads) // rows) * kv_heads


def attention_launches(
    lengths: Sequence[int], heads: int, kv_heads: int, head_dim: int, processors: int
) -> tuple[Launch, ...]:
    """Kernels for sequences by their numbers of query tokens; adjacent ones share a launch.

    An extension would leave most of the card idle in the prefill kernel, where each CTA walks all
    keys; it goes to the kernel that splits them. Both take equally long at two fifths of a card
    (fp16) to a whole one (int4), according to a model of a 2080 Ti and measurements on an H200.
    """
    found: list[Launch] = []
    room = int(processors * SPLIT_SHARE)
    each = [prefill_ctas(tokens, heads, kv_heads, head_dim) for tokens in lengths]
    for n, (tokens, ctas) in enumerate(zip(lengths, each, strict=True)):
        if tokens <= MAX_QUERY_TOKENS:
            kernel = "decode"
        elif ctas <= room and tokens <= MAX_EXTEND_TOKENS:
            kernel = "extend"
        else:
            kernel = "prefill"
        if found and found[-1].kernel == kernel:
            last = found.pop()
            found.append(Launch(kernel, last.first, n + 1, max(last.tokens, tokens)))
        else:
            found.append(Launch(kernel, n, n + 1, tokens))
    return tuple(
        one._replace(kernel="prefill")
        if one.kernel == "extend" and sum(each[one.first : one.last]) > room
        else one
        for one in found
    )


def takes_batch(wanted: str, *, prefills: int, decodes: int, spec_decodes: int) -> bool:
    """Whether a batch of this kind goes to caovan's kernels if `wanted` are on."""
    if wanted == "prefill":
        return prefills > 0 and not spec_decodes
    if wanted == "decode":
        return prefills == 0
    return wanted == "all"


def _sm(capability: tuple[int, int] | None) -> str:
    return (
        "of unknown compute capability"
        if capability is None
        else f"SM{capability[0]}{capability[1]}"
    )


def flashinfer_refusal(
    capability: tuple[int, int] | None,
    vllm: tuple[int, ...] | None,
    version: tuple[int, ...] | None,
) -> str | None:
    """The reason why FlashInfer attention is not offered again on SM75; None if it is.

    vLLM raised its minimum to SM80, by 0.33 at the latest, when FlashInfer was broken on Turing;
    FlashInfer works there again since 0.6.16. Versions decide, because importing FlashInfer to ask
    it would initialise CUDA in vLLM's first process.
    """
    if capability != (7, 5):
        return f"the GPU is {_sm(capability)}"
    if vllm is None or vllm < (0, 22):
        return "this vLLM accepts FlashInfer on SM75 itself"
    if version is None:
        return "FlashInfer is not installed"
    if version < (0, 6, 16):
        return f"FlashInfer {'.'.join(map(str, version))} is broken on SM75; 0.6.16 or newer works"
    return None
