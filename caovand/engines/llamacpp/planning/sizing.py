"""The sizes in a plan for llama.cpp: context, slots, cache, steps, and the layers on each card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from caovand.core.config.schema import Config
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.facts.occupancy import host_reserve_mib
from caovand.core.plan import Setting, Unplannable
from caovand.engines.common.gguf import choices, sizing, slots
from caovand.engines.common.gguf.placement import Placement, devices, host_budget
from caovand.engines.common.gguf.sizes import CACHE_TYPES, GgufLoad
from caovand.engines.common.gguf.sizing import LoadSizer, PlacedLoad
from caovand.engines.common.options import count
from caovand.engines.common.plans import refuse_beyond_limit
from caovand.engines.llamacpp.planning import drafting, loading, steps, texts
from caovand.engines.llamacpp.planning.options import CONTEXT, SHARED, option

EXPERTS_IN_RAM = "n_cpu_moe"
MIN_CONTEXT_LEFT, MIN_REQUESTS_LEFT = 0.9, 0.85
"""The fraction of the context and of the requests that larger steps must leave."""
SEPARATE = frozenset({"no_kv_unified", "no_kvu"})
"""Options that give each slot its own cache."""
CACHE_RAM_MIB = 8192
"""MiB of prompts that llama-server keeps in host memory by default."""

PROMPTS_LEAVE = "the free memory that earlier prompts leave"


@dataclass(frozen=True)
class SizingInput:
    """The request and machine that a load is sized for; `verbatim` are the operator's options."""

    config: Config
    inventory: Inventory
    gpus: tuple[Gpu, ...]
    verbatim: Mapping[str, Any]

    @property
    def sizer(self) -> LoadSizer:
        policy = self.config.policy
        return LoadSizer(
            self.inventory.model,
            self.inventory.host,
            self.gpus,
            sizing.card_budgets(self.gpus, policy.gpu_memory_utilization),
            sizing.WORKLOADS[policy.workload],
        )

    def without_ram(self, mib: int) -> SizingInput:
        """The same request on a host with this much less free memory."""
        host = self.inventory.host
        host = replace(host, available_mib=max(host.available_mib - mib, 0))
        return replace(self, inventory=replace(self.inventory, host=host))


def settings(request: SizingInput, speculative: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings that divide memory. Raises Unplannable."""
    gpus, verbatim, sizer = request.gpus, request.verbatim, request.sizer
    kinds = _choose_cache_types(request)
    batch, micro = _choose_batches(request)
    parallel = _choose_slots(request)
    load = GgufLoad(
        context=0,
        slots=parallel.value,
        shared=verbatim.get(SHARED) is True,
        batch=micro.value,
        keys=kinds[0].value,
        values=kinds[1].value,
        flash=verbatim.get("flash_attn") != "off",
        depth=speculative.get("num_speculative_tokens", 0),
        mtp=speculative.get("method") == drafting.MTP,
        filled=sizer.workload.filled,
    )

    def size(request: SizingInput, load: GgufLoad) -> tuple[PlacedLoad, Setting]:
        loads = choices.candidate_loads(request.sizer, load, parallel, kinds)
        return _choose_context(request, loads, parallel)

    after_prompts, prompts = request, None
    if not gpus:
        prompts = _choose_prompt_cache(request, load, Placement())
        kept = count(verbatim.get("cache_ram", prompts.value)) or 0
        after_prompts = request.without_ram(kept)
    sized, context = size(after_prompts, load)
    if prompts and not sized.fits:
        sized, context = size(request, load)
        prompts = Setting(
            0, "policy", "MiB for earlier prompts: the model leaves no memory for them"
        )
    if micro.origin == "policy":
        for tokens in (batch.value, batch.value // 2):
            if tokens > micro.value:
                larger, longest = size(after_prompts, replace(load, batch=tokens))
                if reason := _worth_its_buffers(larger, sized, sizer):
                    sized, context, micro = larger, longest, Setting(tokens, "policy", reason)
                    break
    if sized.load.keys != kinds[0].value:
        kinds = (choices.cache_type_of(sized, kinds[0]),) * 2
    return {
        CONTEXT: context,
        "parallel": choices.slots_of(sized, parallel),
        **_choose_sharing(sized.load),
        "batch_size": batch,
        "ubatch_size": micro,
        "cache_type_k": kinds[0],
        "cache_type_v": kinds[1],
        "load_mode": loading.choose_load_mode(sized, gpus),
        "cache_ram": prompts or _choose_prompt_cache(request, sized.load, sized.placement),
        **loading.choose_numa(request.inventory, gpus, sized),
        **_on_cards(request, sized),
    }


def _worth_its_buffers(larger: PlacedLoad, sized: PlacedLoad, sizer: LoadSizer) -> str:
    """Why the load with a larger step is better than the current one; "" if it is not."""
    context, limit = sized.load.context, sizer.model.max_model_len
    enough = min(sizer.workload.sufficient_context, context)
    if not (larger.fits and larger.load.slots >= MIN_REQUESTS_LEFT * sized.load.slots):
        return ""
    if sized.placement.experts_in_ram:
        quick = larger.seconds <= sized.seconds * sizing.NEARLY_FACTOR
        worth = quick and larger.load.context >= enough
        return (
            "experts in host memory are sent to the card once per batch of this size"
            if worth
            else ""
        )
    if not (sized.whole and larger.whole and sized.placement.layers):
        return ""
    if larger.load.keys != sized.load.keys:
        return ""
    kept = context if context == limit else max(enough, MIN_CONTEXT_LEFT * context)
    if larger.load.context < kept:
        return ""
    return "the cards have room for the compute buffers, which speeds up prompts"


def _choose_slots(request: SizingInput) -> Setting:
    typed = count(request.verbatim.get("parallel"))
    if typed:
        return Setting(typed, "user", "passed verbatim")
    return choices.choose_slots(request.config, request.sizer)


def _choose_cache_types(request: SizingInput) -> tuple[Setting, Setting]:
    typed, verbatim = request.config.policy.kv_cache_dtype, request.verbatim
    known = dict(request.inventory.engine.choices).get("--cache-type-k", tuple(CACHE_TYPES))
    if typed in (None, "auto"):
        kind = Setting("f16", "policy", "half precision is llama.cpp's default")
    elif typed in known:
        kind = Setting(typed, "user", "[policy] kv_cache_dtype")
    else:
        raise Unplannable(
            f'cannot use kv_cache_dtype "{typed}": llama.cpp has no such cache type; use one of'
            f" {', '.join(known)}"
        )
    keys, values = (
        Setting(str(verbatim[name]), "user", "passed verbatim") if name in verbatim else kind
        for name in ("cache_type_k", "cache_type_v")
    )
    return keys, values


def _choose_batches(request: SizingInput) -> tuple[Setting, Setting]:
    config, inventory, verbatim = request.config, request.inventory, request.verbatim
    whole = texts.step(config, inventory.model, verbatim)
    if whole:
        return whole, whole
    typed = count(verbatim.get("batch_size")) or config.policy.max_num_batched_tokens
    if typed is not None:
        batch = Setting(typed, "user", "[policy] max_num_batched_tokens")
    elif request.gpus:
        batch = Setting(
            steps.MAX_ON_CARDS, "policy", "long prompts keep the cards busy in large steps"
        )
    else:
        batch = Setting(
            steps.max_on_cpu(inventory.model, inventory.host),
            "policy",
            f"a step takes at most about {steps.STEP_S:g} s on {inventory.host.cpus} cores, and "
            "llama-server does not answer until it is done",
        )
    micro = count(verbatim.get("ubatch_size")) or min(batch.value, steps.ON_CARDS)
    reason = "larger ones need larger compute buffers"
    return batch, Setting(micro, "user" if "ubatch_size" in verbatim else "policy", reason)


def _choose_sharing(load: GgufLoad) -> dict[str, Setting]:
    """One cache for all slots, if the load has one."""
    if not load.shared or load.slots == 1:
        return {}
    reason = f"one request can use the whole cache, which {load.slots} concurrent requests share"
    return {SHARED: Setting(True, "policy", reason)}


def _choose_context(
    request: SizingInput, loads: tuple[GgufLoad, ...], parallel: Setting
) -> tuple[PlacedLoad, Setting]:
    config, verbatim, sizer = request.config, request.verbatim, request.sizer
    stated, source = config.model.max_model_len, "[model] max_model_len"
    if CONTEXT in verbatim:
        stated = max((verbatim[CONTEXT] or sizer.model.max_model_len) // loads[0].caches, 1)
        loads = tuple(load for load in loads if load.slots == loads[0].slots)
        source = "passed verbatim, for all sequences together"
    else:
        refuse_beyond_limit(config, sizer.model)
    if stated is not None:
        sized = slots.choose_fixed(sizer, [replace(load, context=stated) for load in loads])
        longest = sizer.find_longest(sized.load)
        if sizer.gpus and not sized.whole and longest.whole and longest.fits:
            source += f"; {longest.load.context} tokens would keep every layer on the cards"
        return sized, Setting(stated, "user", source)
    if whole := texts.step(config, sizer.model, verbatim):
        loads = tuple(replace(load, context=whole.value) for load in loads)
        return sizing.best(loads, sizer.place), whole
    workload, flags = config.policy.workload, request.inventory.engine.flags
    sized = choices.choose_open(sizer, loads, parallel)
    may_share = not flags or option(SHARED) in flags
    if workload != "batch" and may_share and not SEPARATE & verbatim.keys():
        sized = slots.share_cache(sizer, sized)
    reason = choices.why_context(sizer, sized, workload, PROMPTS_LEAVE)
    if sized.load.slots > 1:
        filled = sized.whole and sized.fits and sized.load.context != sizer.model.max_model_len
        if sized.load.shared:
            reason += f"; {sized.load.slots} slots share it"
        elif sizer.gpus and filled:
            reason += f" for {sized.load.slots} slots"
    return sized, Setting(sized.load.context, "policy", reason)


def _on_cards(request: SizingInput, sized: PlacedLoad) -> dict[str, Setting]:
    if not request.gpus:
        return {}
    placement = sized.placement
    filled = min(sized.load.filled, sized.load.context)
    generates = texts.task_of(request.inventory.model, request.verbatim) == "generate"
    reason = "every layer fits on the cards" if sized.whole else "as many as fit on the cards"
    if sized.fits and sized.seconds and generates:
        tokens_s = 1 / sized.seconds
        reason += f", modelled {tokens_s:.{0 if tokens_s >= 10 else 1}f} tokens/s"
        if filled > sizing.WORKLOADS["chat"].filled:
            reason += f" at {filled} tokens of context"
    options = {"gpu_layers": Setting(placement.layers, "policy", reason)}
    if len(request.gpus) > 1:
        split = ",".join(map(str, placement.on_cards)) if placement.layers else "1"
        options["split_mode"] = Setting(
            "layer", "policy", "cards of different sizes get whole layers"
        )
        options["tensor_split"] = Setting(split, "policy", "layers per card, by free memory")
    if placement.experts_in_ram:
        options[EXPERTS_IN_RAM] = Setting(
            placement.experts_in_ram,
            "policy",
            "layers whose routed experts stay in host memory: a token reads few of them",
        )
    return options


def _choose_prompt_cache(request: SizingInput, load: GgufLoad, placement: Placement) -> Setting:
    # Based on total memory while that is free: free memory changes from start to start, and the
    # plan with it.
    gpus, host = request.gpus, request.inventory.host
    if any(gpu.unified for gpu in gpus):
        spare = host_reserve_mib(host.ram_mib) // 8
        reason = "MiB for earlier prompts: an eighth of the host's reserve"
        return Setting(min(spare, CACHE_RAM_MIB), "policy", reason)
    on_host = devices(request.inventory.model, load, placement)[-1]
    spare = max(host.ram_mib - (on_host.weights >> 20), 0) // 8
    if gpus:
        left = max(host_budget(host, gpus) - on_host.total, 0) >> 20
        if left < min(spare, CACHE_RAM_MIB):
            reason = "MiB for earlier prompts: the free host memory that the weights leave"
            return Setting(left, "policy", reason)
    if spare >= CACHE_RAM_MIB:
        return Setting(CACHE_RAM_MIB, "policy", "MiB of host memory for earlier prompts")
    reason = "MiB for earlier prompts: an eighth of the host memory that the weights leave"
    return Setting(spare, "policy", reason)
