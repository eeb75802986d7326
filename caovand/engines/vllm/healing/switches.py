"""Steps that replace a component or turn it off: graphs, cache and number types, attention,
kernels, the plugin, exchange between cards."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from caovand.core.facts.all_reduce import CUSTOM, NCCL
from caovand.core.healing.failure import Finding
from caovand.core.healing.rung import RungStep
from caovand.core.model_task import POOLING
from caovand.core.plan import Plan
from caovand.engines.vllm.flags.spelling import (
    DRAFTER,
    INT8,
    LM_HEAD,
    MARLIN_INPUT,
    PLUGIN,
    PLUGINS,
    count,
)
from caovand.engines.vllm.healing.sizes import compilation, has_graphs, on_cpu
from caovand.engines.vllm.machine.ranks import EXPERT_PARALLEL, REPLICAS, TENSOR
from caovand.engines.vllm.planning.environment import ATTENTION, STATES

EXPERTS = tuple(f"VLLM_USE_FLASHINFER_MOE_{kind}" for kind in ("FP16", "FP8", "FP4", "MXFP4_BF16"))
WEIGHTS_CAPTURES = ("method", "scheme", "other", "kernel", "input")
"""Captures of log rows that name the kernel of the weights."""
BACKENDS = ("FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")


def piecewise(plan: Plan, finding: Finding) -> RungStep | None:
    config = compilation(plan)
    now = config.get("cudagraph_mode", "vLLM's default")
    if not has_graphs(plan) or now in ("PIECEWISE", "NONE"):
        return None
    changed = {**config, "cudagraph_mode": "PIECEWISE"}
    return RungStep({"compilation_config": changed}, change=f"CUDA graphs {now} -> PIECEWISE")


def eager(plan: Plan, finding: Finding) -> RungStep | None:
    if plan.value("enforce_eager"):
        return None
    changed = {"enforce_eager": True, "compilation_config": None}
    return RungStep(changed, change="CUDA graphs and compilation off")


def kv_dtype_small(plan: Plan, finding: Finding) -> RungStep | None:
    now = plan.value("kv_cache_dtype")
    planned = plan.settings.get("kv_cache_dtype")
    if planned and planned.value is None:
        return None  # its reason is why the policy plans no other type
    if on_cpu(plan) or now not in (None, "auto", "half", "float16", "bfloat16"):
        return None
    return RungStep(
        {"kv_cache_dtype": "fp8"}, value="fp8", change=f"KV cache {now or 'auto'} -> fp8"
    )


def _is_of_weights(finding: Finding) -> bool:
    """Whether the card cannot run the weights: then neither attention nor cache is at fault."""
    return any(name in finding.captures for name in WEIGHTS_CAPTURES)


def kv_dtype_plain(plan: Plan, finding: Finding) -> RungStep | None:
    now = plan.value("kv_cache_dtype")
    # vLLM lists everything wrong with a backend; often the cache is fine.
    blameless = "Reason:" in finding.text and "kv_cache_dtype" not in finding.text
    if now in (None, "auto") or blameless or _is_of_weights(finding):
        return None
    if now == "int4_per_token_head":
        more = "int8_per_token_head"
        return RungStep({"kv_cache_dtype": more}, value=more, change=f"KV cache {now} -> {more}")
    return _plain_cache(now)


def _plain_cache(now: Any) -> RungStep:
    return RungStep({"kv_cache_dtype": "auto"}, value="auto", change=f"KV cache {now} -> auto")


def half(plan: Plan, finding: Finding) -> RungStep | None:
    now, captures = plan.value("dtype"), finding.captures
    of_dtype = "needs" in captures or captures.get("dtype") in ("bfloat16", "float32")
    if now in ("half", "float16") or not of_dtype:
        return None
    return RungStep({"dtype": "half"}, change=f"activations {now or 'auto'} -> half")


def half_input(plan: Plan, finding: Finding) -> RungStep | None:
    """Switch to half-precision activations if an int8 kernel of the weights is at fault."""
    now = plan.env[MARLIN_INPUT].value if MARLIN_INPUT in plan.env else None
    if now != INT8 or not _is_of_weights(finding):
        return None
    return RungStep(env={MARLIN_INPUT: None}, change="int8 activations -> half")


def half_drafter(plan: Plan, finding: Finding) -> RungStep | None:
    """Switch to a 16-bit MTP layer, whose drafts may be accepted more often."""
    if DRAFTER not in plan.env or plan.env[DRAFTER].value != INT8:
        return None
    return RungStep(env={DRAFTER: None}, change="int8 MTP layer -> half")


def half_head(plan: Plan, finding: Finding) -> RungStep | None:
    """Switch to a 16-bit lm_head, and an MTP layer with it, if logits are at fault."""
    now = plan.env[LM_HEAD].value if LM_HEAD in plan.env else None
    env: dict[str, str | None] = {name: None for name in (LM_HEAD, DRAFTER) if name in plan.env}
    return RungStep(env=env, change="int8 lm_head -> half") if now == INT8 else None


_BEFORE_TURING = re.compile(r"has compute capability [67]\.[0-4]\b|\bsm(?:6\d|7[0-4])\b")
"""Cards that FlashInfer does not support."""


def attention(plan: Plan, finding: Finding) -> RungStep | None:
    """Try the next untried backend; the one that failed may be vLLM's own choice."""
    now = plan.value("attention_backend")
    tried = {taken.value for taken in plan.taken if taken.rung == "attention"}
    # FlashInfer compiles its own code, so it is the one that fails without a compiler.
    if finding.failure == "jit-toolchain" or "flashinfer" in finding.text.lower():
        tried.add("FLASHINFER")
    if _BEFORE_TURING.search(finding.text) or _BEFORE_TURING.search(plan.device):
        tried.add("FLASHINFER")
    if "triton_attn" in finding.text.lower():
        tried.add("TRITON_ATTN")
    left = [name for name in BACKENDS if name not in tried and name != now]
    if on_cpu(plan) or not left or _is_of_weights(finding):
        return None
    change = f"attention {now or 'automatic'} -> {left[0]}"
    kind = plan.value("kv_cache_dtype")
    plain = None if kind in (None, "auto") else _plain_cache(kind)
    return RungStep({"attention_backend": left[0]}, value=left[0], change=change, pair=plain)


def _since_hopper(plan: Plan) -> bool:
    return bool(re.search(r"\bsm(9|1\d)\d\b", plan.device))


def gdn(plan: Plan, finding: Finding) -> RungStep | None:
    config = plan.value("additional_config")
    config = config if isinstance(config, Mapping) else {}
    now = plan.value("gdn_prefill_backend") or config.get("gdn_prefill_backend")
    # Only FlashInfer's needs a build; vLLM uses it on no card before Hopper.
    built = finding.failure != "jit-toolchain" or _since_hopper(plan)
    if on_cpu(plan) or now == "triton" or not built:
        return None
    changed = {**config, "gdn_prefill_backend": "triton"}
    return RungStep({"additional_config": changed}, change="GDN prefill -> triton")


def experts(plan: Plan, finding: Finding) -> RungStep | None:
    """Disable FlashInfer's expert kernels, which vLLM uses on cards from SM90 on."""
    new = [name for name in EXPERTS if name not in plan.env or plan.env[name].value != "0"]
    if not _since_hopper(plan) or not new:
        return None
    return RungStep(env=dict.fromkeys(new, "0"), change="FlashInfer's expert kernels off")


def attention_own(plan: Plan, finding: Finding) -> RungStep | None:
    """Decode with vLLM's attention where the plugin's may be active: over caches that Triton's
    supports."""
    kind, backend = plan.value("kv_cache_dtype"), plan.value("attention_backend")
    triton = str(backend).upper() == "TRITON_ATTN" or str(kind).endswith("per_token_head")
    now = plan.env[ATTENTION].value if ATTENTION in plan.env else None
    loads = PLUGINS not in plan.env or PLUGIN in str(plan.env[PLUGINS].value or "").split(",")
    if not triton or not loads or not _plugin_acts(plan) or now == "off":
        return None
    return RungStep(env={ATTENTION: "off"}, change="attention -> vLLM's own kernels")


def _plugin_acts(plan: Plan) -> bool:
    config = plan.value("additional_config")
    here = not plan.device or "sm75" in plan.device
    return here and isinstance(config, Mapping) and bool(config.get("caovan"))


def plugin_off(plan: Plan, finding: Finding) -> RungStep | None:
    """Disable our plugin if it is active or failed; keep the operator's other plugins.

    Also turn off what is correct only with its fixes: the prefix cache and async scheduling.
    """
    names = plan.env[PLUGINS].value if PLUGINS in plan.env else None
    listed = [name for name in str(names or "").split(",") if name]
    acts = _plugin_acts(plan)
    blamed = finding.failure == "plugin-error" or finding.captures.get("component") == "plugin"
    if (names is None and not acts and not blamed) or (names is not None and not listed):
        return None
    if listed and PLUGIN not in listed and not blamed:
        return None
    others = [name for name in listed if name != PLUGIN] if PLUGIN in listed else []
    env: dict[str, str | None] = {PLUGINS: ",".join(others)}
    env |= {name: None for name in (LM_HEAD, DRAFTER) if name in plan.env}  # or memory would count
    if STATES not in plan.env or not plan.env[STATES].value:
        return RungStep(env=env, change="caovan's kernels off")
    env[STATES] = ""
    if not plan.value("speculative_config"):
        return RungStep(env=env, change="caovan's kernels off")
    off = {"enable_prefix_caching": False, "mamba_cache_mode": None, "async_scheduling": False}
    return RungStep(off, env, change="caovan's kernels off, and the prefix cache with them")


def prefix_caching_off(plan: Plan, finding: Finding) -> RungStep | None:
    if plan.value("enable_prefix_caching") is False:
        return None
    changed = {"enable_prefix_caching": False, "mamba_cache_mode": None}
    if STATES in plan.env and plan.env[STATES].value:
        # The plugin fixes asynchronous scheduling with a prefix cache only.
        return RungStep(
            {**changed, "async_scheduling": False}, {STATES: ""}, change="prefix caching off"
        )
    return RungStep(changed, change="prefix caching off")


def _is_alone(plan: Plan) -> bool:
    """Whether the engine uses at most one card."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    return on_cpu(plan) or all((count(plan.value(size)) or 1) == 1 for size in sizes)


def replicas_off(plan: Plan, finding: Finding) -> RungStep | None:
    """Use one engine over the cards of all replicas, or the largest power of two of them, which
    splits nearly all models; a model for texts stays on the cards of one replica."""
    replicas, cards = (count(plan.value(name)) or 1 for name in (REPLICAS, TENSOR))
    if replicas == 1:
        return None
    together = cards if plan.task in POOLING else 1 << (replicas * cards).bit_length() - 1
    changed = {REPLICAS: None, TENSOR: together, EXPERT_PARALLEL: None}
    change = f"{replicas} replicas -> one engine on {changed[TENSOR]} cards"
    return RungStep(changed, change=change)


def variable(
    name: str, value: str, change: str, *, between_cards: bool = False
) -> Callable[[Plan, Finding], RungStep | None]:
    """A rung that sets one variable of the engine's environment."""

    def step(plan: Plan, finding: Finding) -> RungStep | None:
        now = plan.env[name].value if name in plan.env else None
        other = _is_alone(plan) or finding.captures.get("by") == CUSTOM
        vain = now == value or (between_cards and other)
        return None if vain else RungStep(env={name: value}, change=change)

    return step


def all_reduce_off(plan: Plan, finding: Finding) -> RungStep | None:
    if plan.value("disable_custom_all_reduce") or _is_alone(plan):
        return None
    if finding.captures.get("by") == NCCL:
        return None
    return RungStep({"disable_custom_all_reduce": True}, change="custom all-reduce off")
