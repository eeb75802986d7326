"""The size of SGLang's work: cards, share of memory, context, requests, tokens of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from caovand.core.config.schema import Config
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.plan import Setting, Unplannable
from caovand.engines.common.options import count
from caovand.engines.sglang.memory.forecast import estimate, unmodelled
from caovand.engines.sglang.memory.load import (
    Load,
    activation_bytes,
    usual_share,
    usual_step,
)
from caovand.engines.sglang.planning import cards
from caovand.engines.sglang.planning.options import (
    CACHE_TYPE,
    CONTEXT,
    RANKS,
    REQUESTS,
    SHARE,
    STEP,
)

REQUESTS_BY_WORKLOAD = {"chat": 16, "long": 4, "batch": 128}
"""Requests at once for each workload; further ones wait."""
SUFFICIENT_CONTEXT = {"chat": 16384, "long": 131072, "batch": 8192}
"""A context worth another card where the cards are not linked."""
USUAL_REQUEST_TOKENS = {"chat": 8192, "long": 131072, "batch": 4096}
"""Tokens of a usual request, with room for it to grow."""
GRANULE, MIN_CONTEXT = 256, 2048
SHORT_STEP = 2048
"""The shortest step that SGLang's rule reserves less memory for."""


def settings(
    config: Config,
    inventory: Inventory,
    gpus: tuple[Gpu, ...],
    typed: Mapping[str, Any],
    drafts: Setting,
    *,
    old: bool,
) -> dict[str, Setting]:
    """The settings that share out memory."""
    policy, model = config.policy, inventory.model
    requests = _requests(config, typed)
    kind = _cache_type(config, typed)
    dtype = _dtype(config, typed, old=old)
    ranks = Setting(typed[RANKS], "user", "passed verbatim") if RANKS in typed else None
    ranks = ranks or cards.wanted_split(config, inventory, gpus)
    load = Load(
        context=0,
        requests=requests.value,
        step=0,
        share=0.0,
        depth=(drafts.value or {}).get("num_speculative_tokens", 0),
        cache_type=str(kind.value or "auto"),
        activation=activation_bytes(model, dtype.value),
        graphs=policy.cuda_graphs != "none",
    )
    able = (ranks.value,) if ranks else cards.splits(model, gpus)
    loads = [one for many in able for one in _loads(config, load, gpus, typed, many)]
    chosen, tokens = _best(config, inventory, loads, gpus)
    if requests.origin == "policy" and tokens is not None:
        chosen, tokens, requests = _with_more_requests(
            config, inventory, chosen, gpus, tokens, requests
        )
    if ranks is None:
        why = "the fewest cards with room for it: they are not linked by NVLink"
        ranks = Setting(chosen.ranks, "policy", why)
    stated = policy.max_num_batched_tokens is not None
    return {
        CONTEXT: _context(config, inventory, typed, tokens),
        RANKS: ranks,
        SHARE: Setting(
            chosen.share,
            "policy" if policy.gpu_memory_utilization is None else "user",
            "of the memory free at the start; the rest is for activations and CUDA graphs"
            if policy.gpu_memory_utilization is None
            else "[policy] gpu_memory_utilization",
        ),
        REQUESTS: requests,
        STEP: Setting(
            chosen.step,
            "user" if stated else "policy",
            "[policy] max_num_batched_tokens" if stated else _why_step(chosen, gpus),
        ),
        CACHE_TYPE: kind,
        "dtype": dtype,
    }


def _loads(
    config: Config, load: Load, gpus: tuple[Gpu, ...], typed: Mapping[str, Any], ranks: int
) -> list[Load]:
    """The loads over `ranks` cards, with their steps and shares, the largest step first."""
    stated = count(typed.get(STEP)) or config.policy.max_num_batched_tokens
    usual = usual_step(gpus, ranks)[0]
    steps = (stated,) if stated else dict.fromkeys((usual, min(usual, SHORT_STEP)))
    wanted = typed.get(SHARE, config.policy.gpu_memory_utilization)
    loads = [replace(load, ranks=ranks, step=step) for step in steps]
    return [
        replace(
            one,
            share=float(wanted if isinstance(wanted, (int, float)) else usual_share(one, gpus)),
        )
        for one in loads
    ]


def _with_more_requests(
    config: Config,
    inventory: Inventory,
    load: Load,
    gpus: tuple[Gpu, ...],
    tokens: int,
    requests: Setting,
) -> tuple[Load, int, Setting]:
    """The load for as many usual requests as its cache holds, up to SGLang's largest graph."""
    workload = config.policy.workload
    many = min(tokens // USUAL_REQUEST_TOKENS[workload], usual_step(gpus, load.ranks)[1])
    if many <= load.requests:
        return load, tokens, requests
    more = replace(load, requests=many)
    if load.share == usual_share(load, gpus):
        more = replace(more, share=usual_share(more, gpus))
    reason = f"about as many requests of workload {workload} as the cache holds"
    held = estimate(inventory.model, more, gpus).kv_tokens
    return more, held, Setting(many, "policy", reason)


def _why_step(chosen: Load, gpus: tuple[Gpu, ...]) -> str:
    if chosen.step == usual_step(gpus, chosen.ranks)[0]:
        return "what SGLang takes for such cards"
    return "shorter than SGLang takes for such cards: activations would leave too little cache"


def _best(
    config: Config, inventory: Inventory, loads: list[Load], gpus: tuple[Gpu, ...]
) -> tuple[Load, int | None]:
    """The first load with room for enough, else the one with the most; and the tokens it holds."""
    if unmodelled(inventory.model):
        return max(loads, key=lambda load: (load.ranks, load.step)), None
    limit = inventory.model.max_model_len
    enough = config.model.max_model_len or min(SUFFICIENT_CONTEXT[config.policy.workload], limit)
    rooms = [(load, estimate(inventory.model, load, gpus).kv_tokens) for load in loads]
    first = next((one for one in rooms if one[1] >= enough), None)
    return first or max(rooms, key=lambda one: one[1])


def _context(
    config: Config, inventory: Inventory, typed: Mapping[str, Any], tokens: int | None
) -> Setting:
    limit, wanted = inventory.model.max_model_len, config.model.max_model_len
    if CONTEXT in typed:
        return Setting(typed[CONTEXT], "user", "passed verbatim")
    if wanted is not None:
        if limit and inventory.model.limit_known and wanted > limit:
            raise Unplannable(
                f"cannot serve a context of {wanted} tokens: the model's own limit is {limit}; set"
                " [model] max_model_len to at most that"
            )
        return Setting(wanted, "user", "[model] max_model_len")
    if tokens is None:
        return Setting(
            limit, "policy", "the model's own limit; what its cache holds is not modelled"
        )
    if tokens >= limit:
        return Setting(limit, "policy", "the model's own limit")
    if tokens < MIN_CONTEXT:
        return Setting(
            min(MIN_CONTEXT, limit), "policy", "no context fits; trying the smallest useful one"
        )
    return Setting(tokens // GRANULE * GRANULE, "policy", "the longest that fits the cache")


def _requests(config: Config, typed: Mapping[str, Any]) -> Setting:
    if REQUESTS in typed:
        return Setting(typed[REQUESTS], "user", "passed verbatim")
    if config.policy.max_num_seqs is not None:
        return Setting(config.policy.max_num_seqs, "user", "[policy] max_num_seqs")
    workload = config.policy.workload
    return Setting(
        REQUESTS_BY_WORKLOAD[workload], "policy", f"requests at once for workload {workload}"
    )


def _cache_type(config: Config, typed: Mapping[str, Any]) -> Setting:
    if CACHE_TYPE in typed:
        return Setting(typed[CACHE_TYPE], "user", "passed verbatim")
    if config.policy.kv_cache_dtype not in (None, "auto"):
        return Setting(config.policy.kv_cache_dtype, "user", "[policy] kv_cache_dtype")
    return Setting("auto", "policy", "the model's own type loses nothing")


def _dtype(config: Config, typed: Mapping[str, Any], *, old: bool) -> Setting:
    if "dtype" in typed:
        return Setting(typed["dtype"], "user", "passed verbatim")
    if old and config.policy.dtype == "bfloat16":
        raise Unplannable(
            "cannot use [policy] dtype bfloat16: cards before compute capability 8.0 have none; set"
            " half"
        )
    if config.policy.dtype is not None:
        return Setting(config.policy.dtype, "user", "[policy] dtype")
    if old:
        return Setting("half", "policy", "cards before compute capability 8.0 have no bfloat16")
    return Setting("auto", "policy", "the model's own type")
