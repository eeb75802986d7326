"""Rules for the types of cache and activations, and for the attention that reads them.

int8 activations: Marlin multiplies 4-bit weights by them. vLLM asserts that weights are symmetric,
has no such kernel for experts or for weights stored in another order (desc_act), and passes no
scale where all weights are one group; it silently turns negative scales into garbage. On Hopper it
prefers other kernels (Machete, Humming). 0.21 and 0.32 agree in all of this.

`auto` is half wherever int8 may run: its bound is an error of 1 % a layer, a tenth of what four
bits cost the weights, and where one channel in 500 stands out, as in real models, int8 activations
err by 9 to 12 % (csrc/NOTEBOOK.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from caovand.core.facts.inventory import ModelCard
from caovand.core.plan import Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.vllm.flags.spelling import INT8, MARLIN_INPUT
from caovand.engines.vllm.machine.attention import (
    NO_NVCC,
    UNKNOWN_WIDTH,
    Refusal,
    attended_by_flashinfer,
    attends_as_encoder,
    backend_in,
    ends_in_half,
    flashinfer_lacks,
    flashinfer_refusal,
    images_attend_both_ways,
    lacks_toolkit,
    lacks_width,
    remedy,
    triton_refuses,
)
from caovand.engines.vllm.machine.capabilities import (
    ADA,
    AMPERE,
    BLACKWELL,
    HALF,
    HOPPER,
    TURING,
    first_of,
    first_outside,
)
from caovand.engines.vllm.memory.kv_cache import TURBOQUANT
from caovand.engines.vllm.planning.draft import Draft, policy


def cannot_build(draft: Draft) -> bool:
    """Whether this plan must do without kernels that nvcc builds."""
    return draft.cuda and lacks_toolkit(draft.engine, dict(draft.config.engine.env))


TRITON_LEAST = 32
REFUSED = "Triton's attention refuses an fp8 cache on cards before SM89"


def flashinfer_serves(draft: Draft) -> bool:
    """Whether FlashInfer's attention runs on these cards with this engine."""
    return _why_not(draft) is None


def attention(draft: Draft) -> str:
    """The attention in force, as far as it is decided; empty if vLLM chooses."""
    nested = backend_in(draft.verbatim.get("attention_config"))
    return str(draft.value("attention_backend") or nested).upper()


def reads_eight_bits(draft: Draft, *, native: bool) -> bool:
    """Whether attention of newer cards keeps an fp8 cache of this model; `native` needs no
    FlashInfer, and so no compiler."""
    dtype, engine = str(draft.value("dtype") or ""), draft.engine
    if flashinfer_lacks(draft.model, dtype) or lacks_width(draft.model):
        return False
    ready = bool(engine.flashinfer) and not lacks_toolkit(engine, dict(draft.config.engine.env))
    return native or ready


def attention_backend(draft: Draft) -> Setting | None:
    if not draft.turing or not draft.cuda:
        return None
    if backend_in(draft.verbatim.get("attention_config")):
        return policy(None, "--attention-config names one, and vLLM takes no second")
    kind = str(draft.verbatim.get("kv_cache_dtype") or draft.config.policy.kv_cache_dtype or "")
    if kind in TURBOQUANT:
        return policy(None, f"a {kind} cache has its own attention, which vLLM takes by itself")
    if kind.endswith("per_token_head"):
        return policy("TRITON_ATTN", f"no other attention keeps a {kind} cache")
    if _left_to_vllm(draft.model):
        dtype = str(draft.value("dtype") or "")
        unfit = flashinfer_lacks(draft.model, dtype) or UNKNOWN_WIDTH
        return policy(None, f"{unfit}; vLLM takes another by itself")
    refusal = _why_not(draft)
    if refusal is None:
        return policy(
            "FLASHINFER", "the only attention that is fast on these cards, also under MTP"
        )
    return policy("TRITON_ATTN", f"{refusal.why}; Triton's attention is what is left")


def kv_cache_dtype_on_turing(draft: Draft) -> Setting | None:
    if not draft.turing or not draft.cuda:
        return None
    if attention(draft) == "FLASHINFER":
        return policy("fp8", "twice the context in the same memory, with no loss that was measured")
    if _left_to_vllm(draft.model):
        return policy(None, "vLLM chooses the attention of this model, and its cache")
    if flashinfer_serves(draft):
        return policy(None, f"{attention(draft)} was asked for, which keeps no fp8 cache here")
    return policy(None, REFUSED)


def refused_cache(draft: Draft, kind: str) -> str:
    """Why the attention planned for these cards cannot keep this cache; empty if it can."""
    planned = draft.settings.get("attention_backend")
    ours = planned is not None and planned.origin == "policy" and planned.value == "TRITON_ATTN"
    return REFUSED if draft.turing and ours and triton_refuses(kind, draft.engine) else ""


def turing_warnings(draft: Draft) -> list[str]:
    """Warnings for what these cards meet in this engine."""
    refusal = _why_not(draft)
    if not draft.turing or not draft.cuda or refusal is None:
        return []
    unbuilt = refusal.of == "toolchain"
    if attention(draft) == "FLASHINFER" and unbuilt:
        return [f"FLASHINFER cannot start here: {refusal.why}; {remedy(draft.engine)}"]
    if attention(draft) != "TRITON_ATTN":
        return []  # the operator's own choice
    if refusal.of in ("model", "width"):
        return []  # nothing to fix: the setting's reason tells it
    lost = f"{refusal.why}: attention runs on Triton, slower and with a float16 cache"
    brings = f"for an fp8 cache, twice the context and faster attention: {remedy(draft.engine)}"
    return [f"{lost}; {brings}" if unbuilt else lost]


def _left_to_vllm(model: ModelCard) -> bool:
    """Whether neither FlashInfer nor Triton is known to serve the model."""
    heads = bool(model.latent) or lacks_width(model) or 0 < model.head_dim < TRITON_LEAST
    return heads or attends_as_encoder(model)


def _why_not(draft: Draft) -> Refusal | None:
    dtype, env = str(draft.value("dtype") or ""), dict(draft.config.engine.env)
    return flashinfer_refusal(draft.model, draft.engine, dtype, draft.config.engine.plugin, env)


EIGHT_BITS = "fp8"


def uncompiled_warnings(draft: Draft) -> list[str]:
    """A warning if nothing can compile the attention of an 8-bit cache that was asked for.

    Turing has a warning of its own; for SM100 FlashInfer's kernels come compiled.
    """
    values = draft.values
    kind = str(values.get("kv_cache_dtype"))
    named = values.get("attention_backend") or backend_in(values.get("attention_config"))
    ready = any(gpu.compute_capability[0] == BLACKWELL[0] for gpu in draft.cards)
    if named or draft.turing or ready or not cannot_build(draft):
        return []
    if not attended_by_flashinfer(values, draft.inventory, draft.cards):
        return []
    return [
        f"an {kind} cache needs FlashInfer's attention here, which is compiled at the start, and"
        f' {NO_NVCC}; set [policy] kv_cache_dtype = "{own_type(draft)}", or {remedy(draft.engine)}'
    ]


def may_store_in_eight_bits(draft: Draft) -> bool:
    """Whether an fp8 cache may be weighed against the model's own; Turing has a rule of its own.

    On Hopper FlashAttention reads it. Elsewhere it is FlashInfer's where that is installed, which
    must be ready or compiled; without it Triton's attention takes it, from SM89 on.
    """
    asked = {"kv_cache_dtype", "attention_backend", "attention_config"} & set(draft.verbatim)
    if asked or draft.config.policy.kv_cache_dtype or draft.turing or not draft.cuda:
        return False
    if "kv_cache_dtype" in draft.config.policy.pinned:  # "auto" as vLLM means it
        return False
    values = {**draft.values, "kv_cache_dtype": EIGHT_BITS}
    if ends_in_half(values, draft.inventory, draft.cards):
        return False
    hopper = all(gpu.compute_capability[0] == HOPPER[0] for gpu in draft.cards)
    converts = all(gpu.compute_capability >= ADA for gpu in draft.cards)
    if images_attend_both_ways(draft.model):
        return converts
    native = hopper or (converts and not draft.engine.flashinfer)
    return reads_eight_bits(draft, native=native)


AT_LOAD = "fp8"
"""The --quantization that rounds 16-bit weights layer by layer while they are loaded: vLLM 0.21 and
0.33 make no layer on the card before its turn."""


def quantised_at_load(draft: Draft) -> Draft | None:
    """The draft with its 16-bit weights rounded to 8 bits, where cards and settings allow that."""
    model = draft.model
    asked = {"quantization", "hf_overrides", "load_format", "cpu_offload_gb"} & set(draft.verbatim)
    floats = model.quantization is None and {w.dtype for w in model.weights} <= {"F16", "BF16"}
    new = bool(draft.cards) and all(gpu.compute_capability >= AMPERE for gpu in draft.cards)
    if asked or not floats or not new or not model.weights:
        return None
    reason = (
        "rounded while they are loaded, the weights need no host memory; a checkpoint that is"
        " published in 8 or 4 bits is smaller on disk, and often better rounded"
    )
    settings = {**draft.settings, "quantization": policy(AT_LOAD, reason)}
    return replace(draft, settings=settings)


def own_type(draft: Draft) -> str:
    """The name in --kv-cache-dtype of the type that the model computes in."""
    dtype = str(draft.value("dtype") or draft.model.dtype)
    return "float16" if dtype in HALF else "bfloat16"


BITS = 4
_HALF = (
    "half: on an H200 int8 read prompts 1.01 to 1.17 times as fast, took 2 to 3 times as long for a"
    " few tokens without graphs, and erred by 9 to 12 % where single channels stand out, as in"
    ' real models; [policy] activations = "int8" chooses it all the same'
)
_OTHER = "serve a GPTQ checkpoint with 4-bit symmetric weights in groups"
_AUTO = 'set [policy] activations = "auto"'


def marlin_input(draft: Draft) -> Setting | None:
    """The variable that has Marlin round its input; [engine] env wins over it."""
    typed = draft.config.policy.activations
    if MARLIN_INPUT in dict(draft.config.engine.env):
        return None
    refused = _int8_refusal(draft)
    if typed == INT8 and refused:
        raise Unplannable(str(refused))
    if typed:  # a goal that the ladder may give up, unlike what [engine] env sets
        return policy(INT8 if typed == INT8 else None, f"[policy] activations is {typed}")
    return None if refused else policy(None, _HALF)


def variables(draft: Draft) -> dict[str, str]:
    """The variables that count for memory, before the environment is decided."""
    asked = {MARLIN_INPUT: INT8} if draft.config.policy.activations == INT8 else {}
    return {**asked, **dict(draft.config.engine.env)}


def activation_warnings(draft: Draft) -> Iterator[str]:
    """Warnings of what [engine] env overrules, or asks for in vain."""
    own, typed = dict(draft.config.engine.env).get(MARLIN_INPUT), draft.config.policy.activations
    if own is None:
        return
    if typed and typed != own:
        yield f"[policy] activations is {typed}, but [engine] env sets {MARLIN_INPUT} to {own}"
    refused = _int8_refusal(draft) if own == INT8 else None
    if refused:
        yield f"{refused.message}; remove {MARLIN_INPUT} from [engine] env"


def _int8_refusal(draft: Draft) -> Problem | None:
    """Why int8 activations cannot be used here; None if they can."""
    found = _of_weights(draft.model)
    if found is None and draft.verbatim.get("quantization") == "gptq":
        found = "--quantization gptq chooses a kernel that cannot use them", "leave that flag out"
    if found is None:
        found = _of_machine(draft) or _of_scales(draft)
    if found is None:
        return None
    fact, other = found
    return Problem("use int8 activations", fact, ", or ".join(filter(None, (_AUTO, other))))


def _of_weights(model: ModelCard) -> tuple[str, str] | None:
    """The fact and the other remedy if the weights are in the way."""
    stored = model.gptq
    if not model.architecture:
        return "the model is not on this machine yet", "pull it first (`caovanctl model pull`)"
    if stored is None:
        how = model.quantization
        zeros = ", and AWQ weights have zero points" if how == "awq" else ""
        how = f"the weights are {how}" if how else "the weights are not quantised"
        return f"{how}; vLLM multiplies only symmetric GPTQ weights by them{zeros}", _OTHER
    if model.experts:
        return "vLLM has no int8 kernel for 4-bit experts", "serve a model without experts"
    if stored.bits != BITS or stored.mixed:
        bits = "of several kinds" if stored.mixed else f"of {stored.bits} bits"
        return f"the weights are {bits}, and vLLM multiplies only 4-bit weights by them", _OTHER
    if not stored.symmetric or stored.act_order:
        why = (
            "stored in the order of the activations (desc_act)"
            if stored.symmetric
            else "not symmetric"
        )
        return f"the weights are {why}, and vLLM has no int8 kernel for that", _OTHER
    if not model.group_size:
        return (
            "each column of the weights has a single scale, which vLLM's int8 kernel cannot use",
            _OTHER,
        )
    return None


def _of_machine(draft: Draft) -> tuple[str, str] | None:
    if not draft.cuda:
        return "the engine is a CPU build", ""
    card = first_outside(draft.cards, TURING, HOPPER)
    if card:
        hopper = first_of(draft.cards, HOPPER[0])
        why = (
            "where vLLM prefers another kernel" if card == hopper else "where they were never tried"
        )
        return f"{card}, {why}", ""
    return None


def _of_scales(draft: Draft) -> tuple[str, str] | None:
    if draft.model.negative_scale:
        return (
            f"{draft.model.negative_scale} has negative scales, which vLLM would turn into garbage",
            _OTHER,
        )
    typed = draft.config.policy.activations == INT8  # else nobody has read them
    if (
        typed
        and draft.model.negative_scale is None
        and draft.verbatim.get("load_format") != "dummy"
    ):
        return (
            "the scales could not be read, and may be negative",
            "convert the weights to safetensors",
        )
    return None
