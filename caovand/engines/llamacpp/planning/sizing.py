"""The sizes in a plan for llama.cpp: context, slots, cache, steps, and the layers on each card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from caovand.core.config.schema import Config
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.facts.occupancy import host_reserve_mib
from caovand.core.plan import Setting, Unplannable
from caovand.engines.common.gguf import sizing
from caovand.engines.common.gguf import slots as requests
from caovand.engines.common.gguf.placement import Placement, devices, host_room
from caovand.engines.common.gguf.sizes import CACHE_TYPES, GgufLoad
from caovand.engines.common.options import count
from caovand.engines.llamacpp.planning import drafting, loading, steps, texts
from caovand.engines.llamacpp.planning.options import CONTEXT, SHARED, option

EIGHT_BITS = "q8_0"
EXPERTS_IN_RAM = "n_cpu_moe"
KEPT_CONTEXT, KEPT_SEQUENCES = 0.9, 0.85
"""The fraction of the context and of the sequences that larger steps must leave."""
SEPARATE = frozenset({"no_kv_unified", "no_kvu"})
"""Options that give each slot its own cache."""
CACHE_RAM_MIB = 8192
"""MiB of prompts that llama-server keeps in host memory by default."""


def settings(
    config: Config,
    inventory: Inventory,
    gpus: tuple[Gpu, ...],
    verbatim: Mapping[str, Any],
    speculative: Mapping[str, Any],
) -> dict[str, Setting]:
    """The settings that divide memory."""
    kinds = _choose_cache_types(config, inventory, verbatim)
    batch, micro = _choose_batches(config, inventory, gpus, verbatim)
    slots = _choose_slots(config, inventory, gpus, verbatim)
    load = GgufLoad(
        context=0,
        slots=slots.value,
        shared=verbatim.get(SHARED) is True,
        batch=micro.value,
        keys=kinds[0].value,
        values=kinds[1].value,
        flash=verbatim.get("flash_attn") != "off",
        depth=speculative.get("num_speculative_tokens", 0),
        mtp=speculative.get("method") == drafting.MTP,
        filled=sizing.FILLED[config.policy.workload],
    )
    rooms = sizing.rooms_of(gpus, config.policy.gpu_memory_utilization)

    def size(load: GgufLoad, inventory: Inventory) -> tuple[sizing.PlacedLoad, Setting]:
        loads = _candidate_loads(load, slots, kinds, inventory, gpus)
        most = load.slots
        if slots.origin == "policy":
            most = requests.max_slots(inventory.model, gpus, inventory.host, config.policy.workload)
        return _choose_context(config, inventory, loads, gpus, rooms, verbatim, most)

    roomy, prompts = inventory, None
    if not gpus:
        prompts = _choose_prompt_cache(inventory, gpus, load, Placement())
        kept = count(verbatim.get("cache_ram", prompts.value)) or 0
        left_mib = max(inventory.host.available_mib - kept, 0)
        roomy = replace(inventory, host=replace(inventory.host, available_mib=left_mib))
    sized, context = size(load, roomy)
    if prompts and not sized.fits:
        sized, context = size(load, inventory)
        prompts = Setting(0, "policy", "MiB for earlier prompts: the model leaves no memory")
    if micro.origin == "policy":
        for tokens in (batch.value, batch.value // 2):
            if tokens > micro.value:
                larger, longest = size(replace(load, batch=tokens), roomy)
                if why := _worth_its_buffers(larger, sized, config, inventory):
                    sized, context, micro = larger, longest, Setting(tokens, "policy", why)
                    break
    slots, kinds = _settings_of_load(sized, slots, kinds)
    return {
        CONTEXT: context,
        "parallel": slots,
        **_choose_sharing(sized.load),
        "batch_size": batch,
        "ubatch_size": micro,
        "cache_type_k": kinds[0],
        "cache_type_v": kinds[1],
        "load_mode": loading.choose_load_mode(sized, gpus),
        "cache_ram": prompts or _choose_prompt_cache(inventory, gpus, sized.load, sized.placement),
        **loading.choose_numa(inventory, gpus, sized),
        **_on_cards(sized, gpus, generates=texts.task_of(inventory.model, verbatim) == "generate"),
    }


def _worth_its_buffers(
    larger: sizing.PlacedLoad, sized: sizing.PlacedLoad, config: Config, inventory: Inventory
) -> str:
    """Why the load with a larger step is better than the current one; "" if it is not."""
    context, limit = sized.load.context, inventory.model.max_model_len
    enough = min(sizing.SUFFICIENT_CONTEXT[config.policy.workload], context)
    if not (larger.fits and larger.load.slots >= KEPT_SEQUENCES * sized.load.slots):
        return ""
    if sized.placement.experts_in_ram:
        quick = larger.seconds <= sized.seconds * sizing.NEARLY_FACTOR
        worth = quick and larger.load.context >= enough
        return "experts in host memory are sent to the card once for each of these" if worth else ""
    if not (sized.whole and larger.whole and sized.placement.layers):
        return ""
    if larger.load.keys != sized.load.keys:
        return ""
    kept = context if context == limit else max(enough, KEPT_CONTEXT * context)
    roomy = larger.load.context >= kept
    return "the cards have room for the compute buffers, and read prompts faster" if roomy else ""


def _choose_slots(
    config: Config, inventory: Inventory, gpus: Sequence[Gpu], verbatim: Mapping[str, Any]
) -> Setting:
    typed = count(verbatim.get("parallel"))
    if typed:
        return Setting(typed, "user", "passed verbatim")
    if config.policy.max_num_seqs is not None:
        return Setting(config.policy.max_num_seqs, "user", "[policy] max_num_seqs")
    workload = config.policy.workload
    many = requests.wanted(inventory.model, gpus, inventory.host, workload)
    return Setting(
        many, "policy", f"sequences at once for workload {workload}; each has the whole context"
    )


def _choose_cache_types(
    config: Config, inventory: Inventory, verbatim: Mapping[str, Any]
) -> tuple[Setting, Setting]:
    typed = config.policy.kv_cache_dtype
    known = dict(inventory.engine.choices).get("--cache-type-k", tuple(CACHE_TYPES))
    if typed not in (None, "auto") and typed not in known:
        raise Unplannable(
            f'cannot use kv_cache_dtype "{typed}": llama.cpp has no such cache type; use one of'
            f" {', '.join(known)}"
        )
    if typed not in (None, "auto"):
        kind = Setting(typed, "user", "[policy] kv_cache_dtype")
    else:
        kind = Setting("f16", "policy", "half precision is the default of llama.cpp")
    return tuple(  # type: ignore[return-value]
        Setting(str(verbatim[name]), "user", "passed verbatim") if name in verbatim else kind
        for name in ("cache_type_k", "cache_type_v")
    )


def _choose_batches(
    config: Config, inventory: Inventory, gpus: Sequence[Gpu], verbatim: Mapping[str, Any]
) -> tuple[Setting, Setting]:
    whole = texts.step(config, inventory.model, verbatim)
    if whole:
        return whole, whole
    typed = count(verbatim.get("batch_size")) or config.policy.max_num_batched_tokens
    if typed is not None:
        batch = Setting(typed, "user", "[policy] max_num_batched_tokens")
    elif gpus:
        batch = Setting(
            steps.MAX_ON_CARDS, "policy", "long prompts keep the cards busy in large steps"
        )
    else:
        tokens = steps.on_processor(inventory.model, inventory.host)
        batch = Setting(
            tokens,
            "policy",
            f"a step takes at most about {steps.STEP_S:g} s on {inventory.host.cpus} cores, and"
            " llama-server answers nothing until it is done",
        )
    micro = count(verbatim.get("ubatch_size")) or min(batch.value, steps.ON_CARDS)
    reason = "larger ones need larger compute buffers"
    return batch, Setting(micro, "user" if "ubatch_size" in verbatim else "policy", reason)


def _candidate_loads(
    load: GgufLoad,
    slots: Setting,
    kinds: tuple[Setting, Setting],
    inventory: Inventory,
    gpus: Sequence[Gpu],
) -> tuple[GgufLoad, ...]:
    """The preferred load, and cheaper ones that may keep every layer on the cards."""
    if not gpus:
        return (load,)
    block = CACHE_TYPES[EIGHT_BITS][0]
    divides = inventory.model.head_dim % block == 0 and load.flash
    may_lower = divides and all(kind.origin == "policy" for kind in kinds)
    caches = [load, replace(load, keys=EIGHT_BITS, values=EIGHT_BITS)] if may_lower else [load]
    few = zip(*map(requests.fewer, caches), strict=True) if slots.origin == "policy" else ()
    return (*caches, *chain.from_iterable(few))


def _settings_of_load(
    sized: sizing.PlacedLoad, slots: Setting, kinds: tuple[Setting, Setting]
) -> tuple[Setting, tuple[Setting, Setting]]:
    """Slots and cache types of the chosen load."""
    load, layers = sized.load, "layers" if sized.whole else "more layers"
    if load.slots > slots.value:
        reason = "as many sequences as memory has room for; each has the whole context"
        slots = Setting(load.slots, "policy", reason)
    elif load.slots < slots.value:
        reason = f"more sequences would push {layers} off the cards, or leave each a short context"
        slots = Setting(load.slots, "policy", reason)
    if load.keys != kinds[0].value:
        kind = Setting(
            load.keys,
            "policy",
            "a half-precision cache would push layers off the cards, leave a short context, or have"
            " room for far fewer sequences",
        )
        kinds = (kind, kind)
    return slots, kinds


def _choose_sharing(load: GgufLoad) -> dict[str, Setting]:
    """One cache for all slots, if the load has one."""
    if not load.shared or load.slots == 1:
        return {}
    reason = f"one request may use the whole cache, which {load.slots} at once share"
    return {SHARED: Setting(True, "policy", reason)}


def _choose_context(
    config: Config,
    inventory: Inventory,
    loads: Sequence[GgufLoad],
    gpus: Sequence[Gpu],
    rooms: Sequence[int],
    verbatim: Mapping[str, Any],
    most: int,
) -> tuple[sizing.PlacedLoad, Setting]:
    model, host = inventory.model, inventory.host
    typed, source = config.model.max_model_len, "[model] max_model_len"
    if CONTEXT in verbatim:
        typed = max((verbatim[CONTEXT] or model.max_model_len) // loads[0].caches, 1)
        loads = [load for load in loads if load.slots == loads[0].slots]
        source = "passed verbatim, for all sequences together"
    if typed is not None:
        if model.max_model_len and typed > model.max_model_len and CONTEXT not in verbatim:
            raise Unplannable(
                f"cannot serve a context of {typed} tokens: the model's own limit is"
                f" {model.max_model_len}; set [model] max_model_len to at most that"
            )
        loads = [replace(load, context=typed) for load in loads]
        sized = requests.choose_fixed(model, host, loads, gpus, rooms, config.policy.workload)
        longest = sizing.find_longest(model, host, sized.load, gpus, rooms, config.policy.workload)
        if gpus and not sized.whole and longest.whole and longest.fits:
            source += f"; {longest.load.context} tokens would keep every layer on the cards"
        return sized, Setting(typed, "user", source)
    if whole := texts.step(config, model, verbatim):
        loads = [replace(load, context=whole.value) for load in loads]
        sized = sizing.best(loads, lambda load: sizing.place_fixed(model, host, load, gpus, rooms))
        return sized, whole
    workload = config.policy.workload
    sized = requests.choose(model, host, loads, gpus, rooms, workload, most)
    flags = inventory.engine.flags
    shares = not flags or option(SHARED) in flags
    if workload != "batch" and shares and not SEPARATE & verbatim.keys():
        sized = requests.share(model, host, sized, gpus, rooms, workload)
    context = sized.load.context
    if context == model.max_model_len:
        reason = "the model's own limit"
    elif not sized.fits:
        reason = "no context fits; trying the smallest useful one"
    elif gpus and sized.whole:
        reason = "the longest with every layer on the cards"
        if sized.load.slots > 1 and not sized.load.shared:
            reason += f" for {sized.load.slots} slots"
    elif gpus:
        reason = f"enough for workload {workload}; a longer one would push layers off the cards"
    elif context == sizing.longest_on_host(model, host, sizing.SUFFICIENT_CONTEXT[workload]):
        reason = "the CPU takes many minutes to read a longer prompt"
    else:
        reason = (
            f"the longest that fits {inventory.host.available_mib} MiB: the free memory that "
            "earlier prompts leave"
        )
    if sized.load.shared and sized.load.slots > 1:
        reason += f"; {sized.load.slots} slots share it"
    return sized, Setting(context, "policy", reason)


def _on_cards(
    sized: sizing.PlacedLoad, gpus: Sequence[Gpu], *, generates: bool
) -> dict[str, Setting]:
    if not gpus:
        return {}
    placement = sized.placement
    filled = min(sized.load.filled, sized.load.context)
    paced = sized.fits and sized.seconds and generates
    tokens_s = 1 / sized.seconds if paced else 0.0
    pace = f"modelled {tokens_s:.{0 if tokens_s >= 10 else 1}f} tokens/s" if tokens_s else ""
    if pace and filled > sizing.FILLED["chat"]:
        pace += f" at {filled} tokens of context"
    where = "every layer fits on the cards" if sized.whole else "as many as the cards hold"
    found = {
        "gpu_layers": Setting(placement.layers, "policy", f"{where}, {pace}".rstrip(", ")),
    }
    if len(gpus) > 1:
        split = ",".join(map(str, placement.on_cards)) if placement.layers else "1"
        found["split_mode"] = Setting("layer", "policy", "cards of any size take whole layers")
        found["tensor_split"] = Setting(split, "policy", "layers on each card, by its free memory")
    if placement.experts_in_ram:
        found[EXPERTS_IN_RAM] = Setting(
            placement.experts_in_ram,
            "policy",
            "layers whose routed experts stay in host memory: a token reads few of them",
        )
    return found


def _choose_prompt_cache(
    inventory: Inventory, gpus: Sequence[Gpu], load: GgufLoad, placement: Placement
) -> Setting:
    # Based on total memory while that is free: free memory changes from start to start, and the
    # plan with it.
    if any(gpu.unified for gpu in gpus):
        spare = host_reserve_mib(inventory.host.ram_mib) // 8
        reason = "MiB for earlier prompts: an eighth of the host's reserve"
        return Setting(min(spare, CACHE_RAM_MIB), "policy", reason)
    own = devices(inventory.model, load, placement)[-1]
    spare = max(inventory.host.ram_mib - (own.weights >> 20), 0) // 8
    if gpus:
        left = max(host_room(inventory.host, gpus) - own.total, 0) >> 20
        if left < min(spare, CACHE_RAM_MIB):
            reason = "MiB for earlier prompts: the free host memory that the weights leave"
            return Setting(left, "policy", reason)
    if spare >= CACHE_RAM_MIB:
        return Setting(CACHE_RAM_MIB, "policy", "MiB of host memory for earlier prompts")
    reason = "MiB for earlier prompts: an eighth of the host memory that the weights leave"
    return Setting(spare, "policy", reason)
