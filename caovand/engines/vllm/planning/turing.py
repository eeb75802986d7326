"""What cards of compute capability 7.5 can and cannot do, by release.

FlashInfer's attention accepts them in vLLM 0.21, with a float16 or an fp8 cache. Later releases
ask for SM80 there, and Triton's attention, which is left, refuses an fp8 cache below SM89; our
plugin lets them in again where FlashInfer itself works.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from caovand.core.facts.inventory import EngineInfo, ModelCard, version_numbers
from caovand.core.plan import Setting
from caovand.engines.vllm import releases
from caovand.engines.vllm.memory.kv_cache import TURBOQUANT
from caovand.engines.vllm.planning.draft import Draft, policy
from caovand.engines.vllm.planning.toolchain import lacks_toolkit, remedy

FLASHINFER_HEADS = (64, 128, 256)
TRITON_LEAST = 32
WITH_SINKS = ("gpt_oss", "mimo_v2", "openpangu", "laguna")
NO_KERNELS = "has no ready kernels for SM75, and there is no nvcc to build them"
UNKNOWN_WIDTH = "config.json does not tell how wide the attention heads are"
REFUSED = "Triton's attention refuses an fp8 cache on cards before SM89"
OF_TWO_WIDTHS = ("gemma4",)
"""vLLM itself sends such models to Triton, unless a backend was named."""

IMAGES_BOTH_WAYS = frozenset({"bagel", "gemma3", "molmo2", "moondream3", "paligemma", "umm"})
"""Model types in which every token of an image attends to all the others: of vLLM's attention,
only Triton's has that (is_mm_prefix_lm)."""
WRAPPED = ("Bagel", "PaliGemma")
"""Architectures of those whose text part has another family's type."""


def flashinfer_serves(draft: Draft) -> bool:
    """Whether FlashInfer's attention runs on these cards with this engine."""
    return _why_not(draft) is None


@dataclass(frozen=True)
class Refusal:
    """Why FlashInfer's attention does not serve SM75, and which fact it is a matter of."""

    why: str
    of: Literal["model", "engine", "width", "toolchain"]


def flashinfer_refusal(
    model: ModelCard | None,
    engine: EngineInfo,
    dtype: str,
    plugin: bool,
    env: Container[str],
) -> Refusal | None:
    """Why FlashInfer's attention does not serve this model on SM75 here; None where it does.

    `plugin` tells whether caovan's may be used, `env` has the names of [engine] env. A model that
    is not known has the widest heads.
    """
    unfit = flashinfer_lacks(model, dtype) if model else ""
    if unfit:
        return Refusal(unfit, "model")
    refused = _refused_by_engine(engine, model.head_dim if model else 256, plugin)
    if refused:
        return Refusal(refused, "engine")
    if model and _unknown(model):
        return Refusal(UNKNOWN_WIDTH, "width")
    if lacks_toolkit(engine, env):
        return Refusal(f"FlashInfer {NO_KERNELS}", "toolchain")
    return None


def _refused_by_engine(engine: EngineInfo, head_dim: int, plugin: bool) -> str:
    """Why this engine's FlashInfer does not serve SM75; empty where it does."""
    plugin = plugin and bool(engine.plugin)
    installed = version_numbers(engine.flashinfer)
    first, last = releases.BROKEN_FLASHINFER
    if not installed:
        return "FlashInfer is not installed in the engine's environment"
    if engine.release >= releases.FLASHINFER_REFUSES_SM75:
        if not plugin:
            return (
                f"vLLM {engine.version} does not let FlashInfer serve SM75 without caovan's plugin"
            )
        if installed < releases.REPAIRED_FLASHINFER:
            return f"FlashInfer {engine.flashinfer} does not serve SM75; 0.6.16 and newer do"
    elif first <= installed <= last and head_dim >= 256:
        return f"FlashInfer {engine.flashinfer} cannot serve 256-wide heads on SM75"
    return ""


def flashinfer_lacks(model: ModelCard, dtype: str, *, sinks: bool = False) -> str:
    """Why FlashInfer's attention cannot serve this model; empty where it can. On SM100 it has
    attention `sinks`."""
    if model.latent:
        return "FlashInfer's attention has no kernel for compressed key-value pairs (MLA) here"
    if model.model_type.startswith(WITH_SINKS) and not sinks:
        return "FlashInfer's attention knows no attention sinks before SM100"
    if has_heads_of_two_widths(model):
        return f"layers of {model.model_type} have heads of two widths, one of 512"
    if model.head_dim and model.head_dim not in FLASHINFER_HEADS:
        return f"FlashInfer's attention has no kernel for heads of {model.head_dim}"
    if dtype == "float32":
        return "FlashInfer's attention has no kernel for float32"
    if images_attend_both_ways(model):
        return "in FlashInfer's attention the tokens of an image do not attend both ways"
    return ""


def has_heads_of_two_widths(model: ModelCard) -> bool:
    """Whether vLLM sends this model to Triton's attention by itself."""
    return model.model_type.startswith(OF_TWO_WIDTHS)


def images_attend_both_ways(model: ModelCard) -> bool:
    """Whether only Triton's attention serves this model."""
    kind = model.model_type.removesuffix("_text")
    return kind in IMAGES_BOTH_WAYS or model.architecture.startswith(WRAPPED)


def backend_in(config: Any) -> str:
    """The attention that --attention-config names; empty where it names none."""
    return str(config.get("backend") or "").upper() if isinstance(config, Mapping) else ""


def attention(draft: Draft) -> str:
    """The attention in force, as far as it is decided; empty where vLLM chooses."""
    nested = backend_in(draft.given.get("attention_config"))
    return str(draft.value("attention_backend") or nested).upper()


def reads_eight_bits(draft: Draft, *, native: bool) -> bool:
    """Whether attention of newer cards keeps an fp8 cache of this model; `native` needs no
    FlashInfer, and so no compiler."""
    dtype, engine = str(draft.value("dtype") or ""), draft.engine
    if flashinfer_lacks(draft.model, dtype) or _unknown(draft.model):
        return False
    ready = bool(engine.flashinfer) and not lacks_toolkit(engine, dict(draft.config.engine.env))
    return native or ready


def attention_backend(draft: Draft) -> Setting | None:
    if not draft.turing or not draft.cuda:
        return None
    if backend_in(draft.given.get("attention_config")):
        return policy(None, "--attention-config names one, and vLLM takes no second")
    kind = str(draft.given.get("kv_cache_dtype") or draft.config.policy.kv_cache_dtype or "")
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


def kv_cache_dtype(draft: Draft) -> Setting | None:
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
    """Why the attention planned for these cards cannot keep this cache; empty where it can."""
    planned = draft.settings.get("attention_backend")
    ours = planned is not None and planned.origin == "policy" and planned.value == "TRITON_ATTN"
    return REFUSED if draft.turing and ours and triton_refuses(kind, draft.engine) else ""


def triton_refuses(kind: str, engine: EngineInfo) -> bool:
    """Whether Triton's attention keeps no cache of this type on cards before SM89."""
    newer = engine.release >= releases.TRITON_REFUSES_FP8
    return is_plain_fp8(kind) and (newer or kind != "fp8_e5m2")


def is_plain_fp8(kind: str) -> bool:
    """Whether a cache of this type has one scale at most, as FlashInfer's attention reads it."""
    return kind.startswith("fp8") and not kind.endswith("per_token_head")


def traps(draft: Draft) -> list[str]:
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
    """Whether neither FlashInfer nor Triton is known to serve the model's heads."""
    return bool(model.latent) or _unknown(model) or 0 < model.head_dim < TRITON_LEAST


def _unknown(model: ModelCard) -> bool:
    return bool(model.architecture) and not model.head_dim


def _why_not(draft: Draft) -> Refusal | None:
    dtype, env = str(draft.value("dtype") or ""), dict(draft.config.engine.env)
    return flashinfer_refusal(draft.model, draft.engine, dtype, draft.config.engine.plugin, env)
