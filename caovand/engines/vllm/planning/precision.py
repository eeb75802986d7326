"""Rules for the types of the cache and of weights quantised at load, and for attention."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.facts.inventory import ModelCard
from caovand.core.model_task import POOLING
from caovand.core.plan import Setting
from caovand.core.problem import Problem
from caovand.engines.common.tensors import breaks_in_8_bits
from caovand.engines.vllm.machine.attention import (
    NO_NVCC,
    SM75_HEADS,
    UNKNOWN_WIDTH,
    FlashInferRefusal,
    attended_by_flashinfer,
    attended_by_triton,
    attends_as_encoder,
    backend_in,
    ends_in_half,
    flashinfer_lacks,
    flashinfer_refusal,
    lacks_toolkit,
    lacks_width,
    plugin_attends,
    reads_latent_eight_bits,
    remedy,
    triton_refuses,
)
from caovand.engines.vllm.machine.capabilities import (
    ADA,
    BLACKWELL,
    FP8_AT_LOAD,
    HALF,
    HOPPER,
    needs_whole_tiles,
    tower_lacks_tiles,
)
from caovand.engines.vllm.machine.ranks import PIPELINE, shape_problem, shards_whole_experts
from caovand.engines.vllm.memory.kv_cache import TURBOQUANT
from caovand.engines.vllm.planning.partial_plan import PartialPlan, chosen_by_policy, policy

EIGHT_BITS, FOUR_BITS = "fp8", "int4_per_token_head"
"""Cache types that are compared with the rules' own."""
OWN_TYPE = "auto"
"""The model's own type, which is compared where the rules' own choice is 8 bits."""
TRITON_MIN_WIDTH = 32
UNCALIBRATED = (
    "8 bits have no calibrated scales: without them models kept 94 to 99 % of their scores in"
    " vLLM's tests"
)
KEYS_BREAK = (
    "models of the Qwen2 and Qwen2.5 families answer nonsense from an fp8 cache without calibrated"
    " scales: some elements of their keys are very large"
)
REFUSED = "Triton's attention refuses an fp8 cache on cards before SM89"


def cannot_build(partial: PartialPlan) -> bool:
    """Whether this plan must do without kernels that nvcc builds."""
    return partial.cuda and lacks_toolkit(partial.engine, dict(partial.config.engine.env))


def flashinfer_supports(partial: PartialPlan) -> bool:
    """Whether FlashInfer's attention runs on these cards with this engine."""
    return _flashinfer_refusal(partial) is None


def attention(partial: PartialPlan) -> str:
    """The attention in effect, as far as it is decided; empty if vLLM chooses."""
    nested = backend_in(partial.verbatim.get("attention_config"))
    return str(partial.value("attention_backend") or nested).upper()


def supports_fp8_cache(partial: PartialPlan, *, native: bool) -> bool:
    """Whether attention on newer cards supports an fp8 cache of this model.

    `native`: the cards' own attention does, without FlashInfer and so without a compiler.
    """
    dtype, engine = str(partial.value("dtype") or ""), partial.engine
    if flashinfer_lacks(partial.model, dtype) or lacks_width(partial.model):
        return False
    ready = bool(engine.flashinfer) and not lacks_toolkit(engine, dict(partial.config.engine.env))
    return native or ready


def attention_backend(partial: PartialPlan) -> Setting | None:
    if not partial.turing or not partial.cuda:
        return None
    if backend_in(partial.verbatim.get("attention_config")):
        return policy(None, "--attention-config already names a backend, and vLLM accepts only one")
    asked = partial.verbatim.get("kv_cache_dtype") or partial.config.policy.kv_cache_dtype
    kind = str(asked or partial.trial.cache)
    if kind in TURBOQUANT:
        return policy(None, f"a {kind} cache needs its own attention backend, which vLLM selects")
    if kind.endswith("per_token_head"):
        return policy("TRITON_ATTN", f"no other attention backend supports a {kind} cache")
    if _leaves_attention_to_vllm(partial.model):
        dtype = str(partial.value("dtype") or "")
        unfit = flashinfer_lacks(partial.model, dtype) or UNKNOWN_WIDTH
        return policy(None, f"{unfit}; vLLM selects another")
    refusal = _flashinfer_refusal(partial)
    if refusal is None:
        return policy("FLASHINFER", "the only attention that is fast on these cards, also with MTP")
    return policy("TRITON_ATTN", f"{refusal.why}; only Triton's attention is left")


def kv_cache_dtype_by_default(partial: PartialPlan) -> Setting | None:
    if partial.cuda and partial.model.fp8_cache:
        scales = "the checkpoint has scales for an fp8 cache"
        if _reads_declared(partial):
            return policy(EIGHT_BITS, scales)
        unread = "which no attention backend supports here"
        if partial.model.indexer:
            unread = "but its sparse attention supports 8 bits only with its own scales"
        return policy(own_type(partial), f"{scales}, {unread}")
    if partial.cuda and breaks_in_8_bits(partial.model):
        return policy(None, KEYS_BREAK)
    if not partial.turing or not partial.cuda:
        return None
    if partial.task in POOLING:
        return policy(None, "no text is generated: the cache holds a text only while it is read")
    if attention(partial) == "FLASHINFER":
        return policy("fp8", f"twice the context in the same memory; {UNCALIBRATED}")
    if _leaves_attention_to_vllm(partial.model):
        return policy(None, "vLLM chooses this model's attention backend and its cache")
    if flashinfer_supports(partial):
        unsupported = "is configured, but does not support an fp8 cache on these cards"
        return policy(None, f"{attention(partial)} {unsupported}")
    return policy(None, REFUSED)


def _reads_declared(partial: PartialPlan) -> bool:
    """Whether some attention reads the fp8 cache that the checkpoint declares."""
    model = partial.model
    if partial.turing:
        return attention(partial) == "FLASHINFER"
    if not model.latent:
        return _reads_eight_bits(partial)
    return not model.indexer and reads_latent_eight_bits(partial.cards)


def why_cache_refused(partial: PartialPlan, kind: str) -> str:
    """Why the attention planned for these cards cannot keep this cache; empty if it can."""
    ours = chosen_by_policy(partial, "attention_backend") == "TRITON_ATTN"
    return REFUSED if partial.turing and ours and triton_refuses(kind, partial.engine) else ""


def turing_warnings(partial: PartialPlan) -> list[str]:
    """Warnings about limits of this engine on these cards."""
    refusal = _flashinfer_refusal(partial)
    if not partial.turing or not partial.cuda or refusal is None:
        return []
    unbuilt = refusal.of == "toolchain"
    if attention(partial) == "FLASHINFER" and unbuilt:
        return [f"FLASHINFER cannot start here: {refusal.why}; {remedy(partial.engine)}"]
    if attention(partial) != "TRITON_ATTN" or partial.trial.cache:
        return []  # the operator's own choice, or the better one
    if refusal.of in ("model", "width"):
        return []  # nothing to fix: the setting's reason says it
    lost = f"{refusal.why}: attention runs on Triton, slower and with a float16 cache"
    brings = f"for an fp8 cache, twice the context and faster attention: {remedy(partial.engine)}"
    return [f"{lost}; {brings}" if unbuilt else lost]


def _leaves_attention_to_vllm(model: ModelCard) -> bool:
    """Whether neither FlashInfer nor Triton is known to serve the model."""
    heads = bool(model.latent) or lacks_width(model) or 0 < model.head_dim < TRITON_MIN_WIDTH
    return heads or attends_as_encoder(model)


def _flashinfer_refusal(partial: PartialPlan) -> FlashInferRefusal | None:
    dtype, env = str(partial.value("dtype") or ""), dict(partial.config.engine.env)
    return flashinfer_refusal(
        partial.model, partial.engine, dtype, partial.config.engine.plugin, env
    )


def garbled_cache_warnings(partial: PartialPlan) -> list[str]:
    """A warning if an fp8 cache was configured for a model that it is known to break."""
    kind = str(partial.values.get("kv_cache_dtype"))
    if not kind.startswith("fp8") or partial.model.fp8_cache or not breaks_in_8_bits(partial.model):
        return []
    own = own_type(partial)
    return [f'the cache is stored in {kind}: {KEYS_BREAK}; set [policy] kv_cache_dtype = "{own}"']


def uncompiled_warnings(partial: PartialPlan) -> list[str]:
    """A warning if nothing can compile the attention for an 8-bit cache that was configured.

    Turing has its own warning; for SM100 FlashInfer's kernels come compiled.
    """
    values = partial.values
    kind = str(values.get("kv_cache_dtype"))
    named = values.get("attention_backend") or backend_in(values.get("attention_config"))
    ready = any(gpu.compute_capability[0] == BLACKWELL[0] for gpu in partial.cards)
    if named or partial.turing or ready or not cannot_build(partial):
        return []
    if not attended_by_flashinfer(values, partial.inventory, partial.cards):
        return []
    return [
        f"an {kind} cache needs FlashInfer's attention here, which is compiled at the start, and"
        f' {NO_NVCC}; set [policy] kv_cache_dtype = "{own_type(partial)}", or'
        f" {remedy(partial.engine)}"
    ]


def smaller_cache(partial: PartialPlan) -> str:
    """The cache type to compare with the rules' own; empty if there is none."""
    policies, model = partial.config.policy, partial.model
    asked = {"kv_cache_dtype", "attention_backend", "attention_config"} & set(partial.verbatim)
    # Pinned, "auto" is as vLLM means it.
    if asked or policies.kv_cache_dtype or "kv_cache_dtype" in policies.pinned:
        return ""
    if not partial.cuda or model.fp8_cache or breaks_in_8_bits(model):
        return ""
    if _may_store_in_eight_bits(partial):
        return EIGHT_BITS
    return FOUR_BITS if _may_store_in_four_bits(partial) else ""


def _may_store_in_eight_bits(partial: PartialPlan) -> bool:
    """Whether an fp8 cache may be compared with the model's own; Turing has its own rule."""
    lasting = partial.task not in POOLING  # whose cache lasts for one step
    return lasting and not partial.turing and _reads_eight_bits(partial)


def _may_store_in_four_bits(partial: PartialPlan) -> bool:
    """Whether an int4 cache may be considered: only on Turing, if caovan's attention reads it.

    Not in mode stable: four bits change a small model's answers (csrc/NOTEBOOK.md).
    """
    model = partial.model
    acts = plugin_attends(partial.engine, partial.cards, partial.memory_variables)
    if partial.mode == "stable" or not acts:
        return False
    plain = model.head_dim in SM75_HEADS and not model.sliding_window
    plain = plain and not flashinfer_lacks(model, str(partial.value("dtype") or ""))
    known = dict(partial.engine.choices).get("--kv-cache-dtype", (FOUR_BITS,))
    return plain and FOUR_BITS in known


def _reads_eight_bits(partial: PartialPlan) -> bool:
    """Whether some attention reads an fp8 cache of this model on these cards; not for Turing.

    On Hopper FlashAttention does. On other cards FlashInfer does if it is installed, and its
    kernels are compiled or can be; if it is not installed, or does not serve the model, Triton's
    attention does, from SM89 on.
    """
    values = {**partial.values, "kv_cache_dtype": EIGHT_BITS}
    if ends_in_half(values, partial.inventory, partial.cards):
        return False
    hopper = all(gpu.compute_capability[0] == HOPPER[0] for gpu in partial.cards)
    converts = all(gpu.compute_capability >= ADA for gpu in partial.cards)
    if attended_by_triton(partial.model, partial.cards):
        return converts
    native = hopper or (converts and not partial.engine.flashinfer)
    return supports_fp8_cache(partial, native=native)


def allows_kernels(partial: PartialPlan) -> bool:
    """Whether no switch turns caovan's kernels off."""
    env = dict(partial.config.engine.env)
    return partial.config.engine.plugin and env.get("CAOVAN_KERNELS", "all") != "off"


def quantise_at_load(partial: PartialPlan) -> PartialPlan | None:
    """The plan with its 16-bit weights quantised to 8 bits, if cards and settings allow that."""
    model = partial.model
    asked = {"quantization", "hf_overrides", "load_format", "cpu_offload_gb"} & set(
        partial.verbatim
    )
    floats = model.quantization is None and {w.dtype for w in model.weights} <= {"F16", "BF16"}
    wide = partial.value("dtype") in ("float32", "float")  # fp8 layers compute in 16 bits only
    if asked or wide or not partial.cards or not floats or not model.weights:
        return None
    reason = (
        "quantised while loading, the weights need no host memory; a checkpoint published in 8 "
        "or 4 bits is smaller on disk and often better quantised"
    )
    settings = {**partial.settings, "quantization": policy(FP8_AT_LOAD, reason)}
    staged, problem = settings.get(PIPELINE), breaks_at_load(partial, len(partial.gpus))
    if staged and problem:
        settings[PIPELINE] = replace(staged, reason=f"each stage has its own card: {problem.fact}")
    rounded = replace(partial, settings=settings)
    ranks, whole = partial.count("tensor_parallel_size"), shards_whole_experts(partial.values)
    broken = shape_problem(model, ranks, whole_experts=whole, whole_tiles=rounded.whole_tiles)
    return None if broken else rounded


def breaks_at_load(partial: PartialPlan, size: int) -> Problem | None:
    """Why this split prevents quantising while loading, which a model that is not split allows."""
    model, cards, engine = partial.model, partial.gpus, partial.engine
    if model.quantization or not needs_whole_tiles(model, FP8_AT_LOAD, cards, engine):
        return None
    alone = shape_problem(model, 1, whole_tiles=True)
    return None if alone else shape_problem(model, size, whole_tiles=True)


def tower_breaks_tiles(partial: PartialPlan) -> bool:
    """Whether Marlin cannot compute the vision tower, which is quantised while it loads."""
    rounds = partial.values.get("quantization") and not partial.model.quantization
    return bool(rounds) and partial.whole_tiles and tower_lacks_tiles(partial.model)


def own_type(partial: PartialPlan) -> str:
    """The --kv-cache-dtype name of the type that the model computes in."""
    dtype = str(partial.value("dtype") or partial.model.dtype)
    return "float16" if dtype in HALF else "bfloat16"
