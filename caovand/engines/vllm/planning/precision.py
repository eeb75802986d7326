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
from caovand.core.model_task import POOLING
from caovand.core.plan import Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.vllm.flags.spelling import INT8, LM_HEAD, MARLIN_INPUT
from caovand.engines.vllm.machine.attention import (
    NO_NVCC,
    SM75_HEADS,
    UNKNOWN_WIDTH,
    Refusal,
    attended_by_flashinfer,
    attended_by_triton,
    attends_as_encoder,
    backend_in,
    ends_in_half,
    flashinfer_lacks,
    flashinfer_refusal,
    lacks_toolkit,
    lacks_width,
    remedy,
    sm75_acts,
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
from caovand.engines.vllm.planning.partial_plan import PartialPlan, policy


def cannot_build(partial: PartialPlan) -> bool:
    """Whether this plan must do without kernels that nvcc builds."""
    return partial.cuda and lacks_toolkit(partial.engine, dict(partial.config.engine.env))


TRITON_MIN_CAPABILITY = 32
REFUSED = "Triton's attention refuses an fp8 cache on cards before SM89"


def flashinfer_serves(partial: PartialPlan) -> bool:
    """Whether FlashInfer's attention runs on these cards with this engine."""
    return _why_not(partial) is None


def attention(partial: PartialPlan) -> str:
    """The attention in effect, as far as it is decided; empty if vLLM chooses."""
    nested = backend_in(partial.verbatim.get("attention_config"))
    return str(partial.value("attention_backend") or nested).upper()


def supports_fp8_cache(partial: PartialPlan, *, native: bool) -> bool:
    """Whether attention on newer cards keeps an fp8 cache of this model.

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
        return policy(None, "--attention-config names one, and vLLM takes no second")
    asked = partial.verbatim.get("kv_cache_dtype") or partial.config.policy.kv_cache_dtype
    kind = str(asked or partial.cache)
    if kind in TURBOQUANT:
        return policy(None, f"a {kind} cache has its own attention, which vLLM takes by itself")
    if kind.endswith("per_token_head"):
        return policy("TRITON_ATTN", f"no other attention keeps a {kind} cache")
    if _left_to_vllm(partial.model):
        dtype = str(partial.value("dtype") or "")
        unfit = flashinfer_lacks(partial.model, dtype) or UNKNOWN_WIDTH
        return policy(None, f"{unfit}; vLLM takes another by itself")
    refusal = _why_not(partial)
    if refusal is None:
        return policy(
            "FLASHINFER", "the only attention that is fast on these cards, also under MTP"
        )
    return policy("TRITON_ATTN", f"{refusal.why}; Triton's attention is what is left")


def kv_cache_dtype_on_turing(partial: PartialPlan) -> Setting | None:
    if not partial.turing or not partial.cuda:
        return None
    if partial.task in POOLING:
        return policy(None, "nothing is generated: the cache holds a text only while it is read")
    if attention(partial) == "FLASHINFER":
        return policy("fp8", "twice the context in the same memory, with no loss that was measured")
    if _left_to_vllm(partial.model):
        return policy(None, "vLLM chooses the attention of this model, and its cache")
    if flashinfer_serves(partial):
        return policy(None, f"{attention(partial)} was asked for, which keeps no fp8 cache here")
    return policy(None, REFUSED)


def refused_cache(partial: PartialPlan, kind: str) -> str:
    """Why the attention planned for these cards cannot keep this cache; empty if it can."""
    planned = partial.settings.get("attention_backend")
    ours = planned is not None and planned.origin == "policy" and planned.value == "TRITON_ATTN"
    return REFUSED if partial.turing and ours and triton_refuses(kind, partial.engine) else ""


def turing_warnings(partial: PartialPlan) -> list[str]:
    """Warnings for what these cards meet in this engine."""
    refusal = _why_not(partial)
    if not partial.turing or not partial.cuda or refusal is None:
        return []
    unbuilt = refusal.of == "toolchain"
    if attention(partial) == "FLASHINFER" and unbuilt:
        return [f"FLASHINFER cannot start here: {refusal.why}; {remedy(partial.engine)}"]
    if attention(partial) != "TRITON_ATTN" or partial.cache:
        return []  # the operator's own choice, or the better one
    if refusal.of in ("model", "width"):
        return []  # nothing to fix: the setting's reason tells it
    lost = f"{refusal.why}: attention runs on Triton, slower and with a float16 cache"
    brings = f"for an fp8 cache, twice the context and faster attention: {remedy(partial.engine)}"
    return [f"{lost}; {brings}" if unbuilt else lost]


def _left_to_vllm(model: ModelCard) -> bool:
    """Whether neither FlashInfer nor Triton is known to serve the model."""
    heads = bool(model.latent) or lacks_width(model) or 0 < model.head_dim < TRITON_MIN_CAPABILITY
    return heads or attends_as_encoder(model)


def _why_not(partial: PartialPlan) -> Refusal | None:
    dtype, env = str(partial.value("dtype") or ""), dict(partial.config.engine.env)
    return flashinfer_refusal(
        partial.model, partial.engine, dtype, partial.config.engine.plugin, env
    )


EIGHT_BITS = "fp8"


def uncompiled_warnings(partial: PartialPlan) -> list[str]:
    """A warning if nothing can compile the attention of an 8-bit cache that was asked for.

    Turing has a warning of its own; for SM100 FlashInfer's kernels come compiled.
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


def may_store_in_eight_bits(partial: PartialPlan) -> bool:
    """Whether an fp8 cache may be weighed against the model's own; Turing has a rule of its own.

    On Hopper FlashAttention reads it. Elsewhere it is FlashInfer's where that is installed, which
    must be ready or compiled; where that is not installed, or does not serve the model, Triton's
    attention takes it, from SM89 on.
    """
    asked = {"kv_cache_dtype", "attention_backend", "attention_config"} & set(partial.verbatim)
    if asked or partial.config.policy.kv_cache_dtype or partial.turing or not partial.cuda:
        return False
    if partial.task in POOLING:
        return False  # its cache is that of one step
    if "kv_cache_dtype" in partial.config.policy.pinned:  # "auto" as vLLM means it
        return False
    values = {**partial.values, "kv_cache_dtype": EIGHT_BITS}
    if ends_in_half(values, partial.inventory, partial.cards):
        return False
    hopper = all(gpu.compute_capability[0] == HOPPER[0] for gpu in partial.cards)
    converts = all(gpu.compute_capability >= ADA for gpu in partial.cards)
    if attended_by_triton(partial.model, partial.cards):
        return converts
    native = hopper or (converts and not partial.engine.flashinfer)
    return supports_fp8_cache(partial, native=native)


FOUR_BITS = "int4_per_token_head"


def smaller_cache(partial: PartialPlan) -> str:
    """The cache type to be weighed against the rules' own; empty if there is none."""
    if may_store_in_eight_bits(partial):
        return EIGHT_BITS
    return FOUR_BITS if may_store_in_four_bits(partial) else ""


def may_store_in_four_bits(partial: PartialPlan) -> bool:
    """Whether an int4 cache may be weighed: where caovan's attention reads it, on Turing alone.

    Not in mode stable: what four bits cost a model's answers was not measured on real text.
    """
    config, model = partial.config, partial.model
    asked = {"kv_cache_dtype", "attention_backend", "attention_config"} & set(partial.verbatim)
    if asked or config.policy.kv_cache_dtype or "kv_cache_dtype" in config.policy.pinned:
        return False
    acts = partial.cuda and sm75_acts(partial.engine, partial.cards, variables(partial))
    if partial.mode == "stable" or not acts:
        return False
    plain = model.head_dim in SM75_HEADS and not model.sliding_window
    plain = plain and not flashinfer_lacks(model, str(partial.value("dtype") or ""))
    known = dict(partial.engine.choices).get("--kv-cache-dtype", (FOUR_BITS,))
    return plain and FOUR_BITS in known


def kernels_wanted(partial: PartialPlan) -> bool:
    """Whether no switch turns caovan's kernels off."""
    env = dict(partial.config.engine.env)
    return partial.config.engine.plugin and env.get("CAOVAN_KERNELS", "all") != "off"


AT_LOAD = "fp8"
"""The --quantization that rounds 16-bit weights layer by layer while they are loaded: vLLM 0.21 and
0.33 make no layer on the card before its turn."""


def quantised_at_load(partial: PartialPlan) -> PartialPlan | None:
    """The plan with its 16-bit weights rounded to 8 bits, where cards and settings allow that."""
    model = partial.model
    asked = {"quantization", "hf_overrides", "load_format", "cpu_offload_gb"} & set(
        partial.verbatim
    )
    floats = model.quantization is None and {w.dtype for w in model.weights} <= {"F16", "BF16"}
    new = bool(partial.cards) and all(gpu.compute_capability >= AMPERE for gpu in partial.cards)
    if asked or not floats or not new or not model.weights:
        return None
    reason = (
        "rounded while they are loaded, the weights need no host memory; a checkpoint that is"
        " published in 8 or 4 bits is smaller on disk, and often better rounded"
    )
    settings = {**partial.settings, "quantization": policy(AT_LOAD, reason)}
    return replace(partial, settings=settings)


def own_type(partial: PartialPlan) -> str:
    """The name in --kv-cache-dtype of the type that the model computes in."""
    dtype = str(partial.value("dtype") or partial.model.dtype)
    return "float16" if dtype in HALF else "bfloat16"


BITS = 4
_HALF = (
    "half: on an H200 int8 read prompts 1.01 to 1.17 times as fast, took 2 to 3 times as long for a"
    " few tokens without graphs, and erred by 9 to 12 % where single channels stand out, as in"
    ' real models; [policy] activations = "int8" chooses it all the same'
)
_OTHER = "serve a GPTQ checkpoint with 4-bit symmetric weights in groups"
_AUTO = 'set [policy] activations = "auto"'


def marlin_input(partial: PartialPlan) -> Setting | None:
    """The variable that has Marlin round its input; [engine] env wins over it."""
    typed = partial.config.policy.activations
    if MARLIN_INPUT in dict(partial.config.engine.env):
        return None
    refused = _int8_refusal(partial)
    if typed == INT8 and refused:
        raise Unplannable(str(refused))
    if typed:  # a goal that the ladder may give up, unlike what [engine] env sets
        return policy(INT8 if typed == INT8 else None, f"[policy] activations is {typed}")
    return None if refused else policy(None, _HALF)


def variables(partial: PartialPlan) -> dict[str, str]:
    """The variables that count for memory, before the environment is decided."""
    policies = partial.config.policy
    goals = {MARLIN_INPUT: policies.activations, LM_HEAD: policies.lm_head}
    asked = {name: INT8 for name, goal in goals.items() if goal == INT8}
    off = {} if partial.config.engine.plugin else {"CAOVAN_KERNELS": "off"}
    return {**asked, **dict(partial.config.engine.env), **off}


def activation_warnings(partial: PartialPlan) -> Iterator[str]:
    """Warnings of what [engine] env overrules, or asks for in vain."""
    own, typed = (
        dict(partial.config.engine.env).get(MARLIN_INPUT),
        partial.config.policy.activations,
    )
    if own is None:
        return
    if typed and typed != own:
        yield f"[policy] activations is {typed}, but [engine] env sets {MARLIN_INPUT} to {own}"
    refused = _int8_refusal(partial) if own == INT8 else None
    if refused:
        yield f"{refused.message}; remove {MARLIN_INPUT} from [engine] env"


def _int8_refusal(partial: PartialPlan) -> Problem | None:
    """Why int8 activations cannot be used here; None if they can."""
    found = _of_weights(partial.model)
    if found is None and partial.verbatim.get("quantization") == "gptq":
        found = "--quantization gptq chooses a kernel that cannot use them", "leave that flag out"
    if found is None:
        found = _of_machine(partial) or _of_scales(partial)
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


def _of_machine(partial: PartialPlan) -> tuple[str, str] | None:
    if not partial.cuda:
        return "the engine is a CPU build", ""
    card = first_outside(partial.cards, TURING, HOPPER)
    if card:
        hopper = first_of(partial.cards, HOPPER[0])
        why = (
            "where vLLM prefers another kernel" if card == hopper else "where they were never tried"
        )
        return f"{card}, {why}", ""
    return None


def _of_scales(partial: PartialPlan) -> tuple[str, str] | None:
    if partial.model.negative_scale:
        return (
            f"{partial.model.negative_scale} has negative scales, which vLLM would turn into"
            " garbage",
            _OTHER,
        )
    typed = partial.config.policy.activations == INT8  # else nobody has read them
    if (
        typed
        and partial.model.negative_scale is None
        and partial.verbatim.get("load_format") != "dummy"
    ):
        return (
            "the scales could not be read, and may be negative",
            "convert the weights to safetensors",
        )
    return None
