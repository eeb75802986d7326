"""The policy: from configuration and inventory to the options of llama-server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from caovand.core.addresses import is_loopback
from caovand.core.config import Config, Mode
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard, device_name
from caovand.core.facts.shortfalls import old_driver, small_host
from caovand.core.model_task import TITLES, ModelTask
from caovand.core.plan import Plan, Setting, Unplannable
from caovand.engines.common.gguf import sizing
from caovand.engines.common.gguf.sizes import CACHE_TYPES, Load
from caovand.engines.common.options import HIDDEN, Typed, count, values
from caovand.engines.common.plans import chosen_cards, device, idle_keys, keep_steps, misfit
from caovand.engines.llamacpp.memory.forecast import forecast
from caovand.engines.llamacpp.planning import drafting, options, steps
from caovand.engines.llamacpp.planning.conflicts import conflicts
from caovand.engines.llamacpp.planning.options import CONTEXT

OLDEST_CARD = (5, 0)
"""Compute capability of the oldest cards that a CUDA build has kernels for."""
EIGHT_BITS = "q8_0"
MAX_TEXT = 8192
"""Tokens of a text to embed, unless more are set: its buffers grow with it."""
SWITCHES: Mapping[ModelTask, str] = {"embed": "embeddings", "score": "reranking"}
"""The options of tasks other than generating text."""
CACHE_RAM_MIB = 8192
"""Prompts that llama-server keeps in host memory by default."""
USED = frozenset({
    "served_name", "max_model_len", "mtp", "gpu_memory_utilization", "kv_cache_dtype",
    "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size",
})  # fmt: skip
"""The keys with "auto" as their default that this planner reads."""
UNUSED = {
    "dtype": "a GGUF file fixes the types it runs in",
    "cuda_graphs": "llama.cpp decides on CUDA graphs itself",
    "tool_call_parser": "llama.cpp reads tool calls by the chat template",
    "reasoning_parser": "llama.cpp reads reasoning by the chat template",
    "revision": "the file itself is the revision",
}
"""Why other keys do nothing here."""


def make_plan(
    config: Config,
    inventory: Inventory,
    *,
    mode: Mode | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
    remembered: Plan | None = None,
) -> Plan:
    """The plan for this configuration on this machine; Unplannable where there is none."""
    model, engine = inventory.model, inventory.engine
    if model.gguf is None:
        raise Unplannable(
            f"cannot serve model {model.path} with llama.cpp: it is not in GGUF files; set [engine]"
            ' kind = "vllm", or download a GGUF file of it'
        )
    words = options.read(config.engine.extra_args, engine.flags, engine.switches)
    verbatim = values(words)
    _check(verbatim)
    gpus = _chosen(config, inventory)
    settings = _settings(config, inventory, gpus, verbatim, mode or config.policy.mode, environ)
    rest = {
        name: Setting(_shown(name, value), "user", "passed verbatim")
        for name, value in verbatim.items()
        if name != CONTEXT  # typed for all sequences together
    }
    plan = Plan(
        model=model.path,
        settings={**_known(settings, inventory), **rest},
        env=_environment(config, gpus, engine.build == "cuda"),
        extra_args=config.engine.extra_args,
        verbatim=frozenset(verbatim),
        device=device(gpus),
        engine=f"{engine.executable} {engine.version}",
        task=_task(model, verbatim),
    )
    plan = keep_steps(plan, remembered)
    return _warned(plan, config, inventory, gpus, words)


def _check(verbatim: Mapping[str, Any]) -> None:
    """Refuse verbatim values that no llama-server takes."""
    for name in (CONTEXT, "parallel", "batch_size", "ubatch_size", "port"):
        if name in verbatim and count(verbatim[name]) is None and verbatim[name] != 0:
            raise Unplannable(
                f"cannot use {options.option(name)} {verbatim[name]} of [engine] extra_args: it is"
                " not a whole number from 0 up; correct it"
            )


def _shown(name: str, value: Any) -> Any:
    return HIDDEN if name in options.CARRIERS else value


def _chosen(config: Config, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards to use, the most free ones if fewer are wanted; none with a CPU build."""
    if inventory.engine.build == "cpu":
        return ()
    gpus = chosen_cards(config, inventory)
    gpus = tuple(gpu for gpu in gpus if gpu.compute_capability >= OLDEST_CARD)
    most = config.policy.tensor_parallel_size
    if most is not None and len(gpus) > most:
        gpus = tuple(sorted(gpus, key=lambda gpu: -gpu.free_mib)[:most])
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _settings(
    config: Config,
    inventory: Inventory,
    gpus: tuple[Gpu, ...],
    verbatim: Mapping[str, Any],
    mode: Mode,
    environ: Mapping[str, str],
) -> dict[str, Setting]:
    host = inventory.host
    speculative = drafting.speculative_config(
        config, inventory, mode, environ, frozenset(verbatim), on_cards=bool(gpus)
    )
    task = _task(inventory.model, verbatim)
    if task != "generate":
        speculative = Setting(None, "policy", f"a model for {TITLES[task]} drafts nothing")
    method = speculative.value or {}
    kinds = _cache_types(config, inventory, verbatim)
    batch, micro = _batches(config, inventory, gpus, verbatim)
    slots = _slots(config, verbatim)
    load = Load(
        context=0,
        slots=slots.value,
        batch=micro.value,
        keys=kinds[0].value,
        values=kinds[1].value,
        flash=verbatim.get("flash_attn") != "off",
        depth=method.get("num_speculative_tokens", 0),
        mtp=method.get("method") == drafting.MTP,
    )
    rooms = sizing.rooms_of(gpus, config.policy.gpu_memory_utilization)
    loads = _loads(load, slots, kinds, inventory, gpus)
    sized, context = _context(config, inventory, loads, gpus, rooms, verbatim)
    slots, kinds = _lowered(sized.load, slots, kinds)
    found = {
        "host": Setting(config.server.host, config.origin("server", "host"), "[server] host"),
        "port": Setting(config.server.port, config.origin("server", "port"), "[server] port"),
        "served_model_name": _name(config, inventory),
        CONTEXT: context,
        "parallel": slots,
        "batch_size": batch,
        "ubatch_size": micro,
        "flash_attn": Setting(
            "on",
            "policy",
            "flash attention takes less memory, and a quantised cache needs it",
        ),
        "cache_type_k": kinds[0],
        "cache_type_v": kinds[1],
        "threads": Setting(host.cpus, "policy", f"one for each of the {host.cpus} cores"),
        "load_mode": Setting(
            "mmap", "policy", "mapped weights stay in the file cache, so the next start is quick"
        ),
        "cache_ram": _cache_ram(inventory),
        "speculative_config": speculative,
        "fit": Setting("off", "policy", "caovan itself decides what fits"),
        "cors_origins": Setting(
            "localhost",
            "policy",
            "web pages of other hosts must not reach the engine through a browser",
        ),
        "metrics": Setting(True, "policy", "caovan watches its counters for progress"),
        "log_verbosity": Setting(4, "policy", "the log has the sizes of buffers, but no prompts"),
        "log_colors": Setting("off", "policy", "caovan reads the log"),
        "offline": Setting(
            True, "policy", "the model is on this machine: nothing needs a download"
        ),
    }
    if task in SWITCHES:
        reason = f"the model is for {TITLES[task]}"
        found[SWITCHES[task]] = Setting(True, "policy", reason)
    if config.model.chat_template:
        found["chat_template"] = Setting(
            config.model.chat_template, "user", "[model] chat_template"
        )
    return {**found, **_on_cards(sized, gpus)}


def _name(config: Config, inventory: Inventory) -> Setting:
    if config.model.served_name is not None:
        return Setting(config.model.served_name, "user", "[model] served_name")
    file = inventory.model.path.rpartition("/")[2].removesuffix(".gguf")
    return Setting(
        file.partition("-00001-of-")[0],
        "policy",
        "the name of the file; llama.cpp answers to any other name, too",
    )


def _task(model: ModelCard, verbatim: Mapping[str, Any]) -> ModelTask:
    """The task of the model, as the operator's options have it."""
    for task, name in SWITCHES.items():
        if verbatim.get(name):
            return task
    return model.task


def _longest_text(config: Config, model: ModelCard, verbatim: Mapping[str, Any]) -> int:
    """Tokens of the longest text that is embedded or ranked."""
    typed = count(verbatim.get(CONTEXT)) or config.model.max_model_len
    return typed or min(model.max_model_len or MAX_TEXT, MAX_TEXT)


def _slots(config: Config, verbatim: Mapping[str, Any]) -> Setting:
    typed = count(verbatim.get("parallel"))
    if typed:
        return Setting(typed, "user", "passed verbatim")
    if config.policy.max_num_seqs is not None:
        return Setting(config.policy.max_num_seqs, "user", "[policy] max_num_seqs")
    workload = config.policy.workload
    many = sizing.SLOTS[workload]
    return Setting(
        many, "policy", f"sequences at once for workload {workload}; each has the whole context"
    )


def _cache_types(
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


def _batches(
    config: Config, inventory: Inventory, gpus: Sequence[Gpu], verbatim: Mapping[str, Any]
) -> tuple[Setting, Setting]:
    model, typed = inventory.model, count(verbatim.get("batch_size"))
    if _task(model, verbatim) != "generate" and typed is None:
        longest = _longest_text(config, model, verbatim)
        whole = Setting(longest, "policy", "a text is read in one step")
        return whole, whole
    typed = typed or config.policy.max_num_batched_tokens
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


def _loads(
    load: Load,
    slots: Setting,
    kinds: tuple[Setting, Setting],
    inventory: Inventory,
    gpus: Sequence[Gpu],
) -> tuple[Load, ...]:
    """The wanted load, and cheaper ones that may keep every layer on the cards."""
    if not gpus:
        return (load,)
    block = CACHE_TYPES[EIGHT_BITS][0]
    divides = inventory.model.head_dim % block == 0 and load.flash
    may_lower = divides and all(kind.origin == "policy" for kind in kinds)
    caches = [load, replace(load, keys=EIGHT_BITS, values=EIGHT_BITS)] if may_lower else [load]
    few = [replace(one, slots=1) for one in caches] if slots.origin == "policy" else []
    return tuple(dict.fromkeys([*caches, *few]))


def _lowered(
    load: Load, slots: Setting, kinds: tuple[Setting, Setting]
) -> tuple[Setting, tuple[Setting, Setting]]:
    """Slots and cache types of the load that was chosen."""
    if load.slots != slots.value:
        slots = Setting(load.slots, "policy", "more sequences would push layers off the cards")
    if load.keys != kinds[0].value:
        kind = Setting(
            load.keys, "policy", "a half-precision cache would push layers off the cards"
        )
        kinds = (kind, kind)
    return slots, kinds


def _context(
    config: Config,
    inventory: Inventory,
    loads: Sequence[Load],
    gpus: Sequence[Gpu],
    rooms: Sequence[int],
    verbatim: Mapping[str, Any],
) -> tuple[sizing.Sized, Setting]:
    model, host = inventory.model, inventory.host
    typed, source = config.model.max_model_len, "[model] max_model_len"
    if typed is None and CONTEXT not in verbatim and _task(model, verbatim) != "generate":
        longest = _longest_text(config, model, verbatim)
        loads = [replace(load, context=longest) for load in loads]
        sized = sizing.best(loads, lambda load: sizing.fixed(model, host, load, gpus, rooms))
        limit = longest == model.max_model_len
        reason = (
            "the model's own limit"
            if limit
            else "a text is read in one step: set more in [model] max_model_len"
        )
        return sized, Setting(longest, "policy", reason)
    if CONTEXT in verbatim:
        typed = max((verbatim[CONTEXT] or model.max_model_len) // loads[0].slots, 1)
        loads = [load for load in loads if load.slots == loads[0].slots]
        source = "passed verbatim, for all sequences together"
    if typed is not None:
        if model.max_model_len and typed > model.max_model_len and CONTEXT not in verbatim:
            raise Unplannable(
                f"cannot serve a context of {typed} tokens: the model's own limit is"
                f" {model.max_model_len}; set [model] max_model_len to at most that"
            )
        loads = [replace(load, context=typed) for load in loads]
        sized = sizing.best(loads, lambda load: sizing.fixed(model, host, load, gpus, rooms))
        return sized, Setting(typed, "user", source)
    workload = config.policy.workload
    sized = sizing.best(
        loads, lambda load: sizing.longest(model, host, load, gpus, rooms, workload)
    )
    context = sized.load.context
    if context == model.max_model_len:
        reason = "the model's own limit"
    elif not sized.fits:
        reason = "no context fits; trying the smallest useful one"
    elif gpus and sized.whole:
        reason = "the longest with every layer on the cards"
    elif gpus:
        reason = f"enough for workload {workload}; a longer one would push layers off the cards"
    elif context == max(sizing.MAX_ON_HOST, sizing.ENOUGH[workload]):
        reason = "a longer prompt takes minutes to read on a processor"
    else:
        reason = f"the longest that fits {inventory.host.available_mib} MiB of free memory"
    return sized, Setting(context, "policy", reason)


def _on_cards(sized: sizing.Sized, gpus: Sequence[Gpu]) -> dict[str, Setting]:
    if not gpus:
        return {}
    placement = sized.placement
    pace = f"modelled {1 / sized.seconds:.0f} tokens/s" if sized.seconds else ""
    where = "every layer fits on the cards" if sized.whole else "as many as the cards hold"
    found = {
        "gpu_layers": Setting(placement.layers, "policy", f"{where}, {pace}".rstrip(", ")),
    }
    if len(gpus) > 1:
        split = ",".join(map(str, placement.on_cards)) if placement.layers else "1"
        found["split_mode"] = Setting("layer", "policy", "cards of any size take whole layers")
        found["tensor_split"] = Setting(split, "policy", "layers on each card, by its free memory")
    if placement.experts_in_ram:
        found["n_cpu_moe"] = Setting(
            placement.experts_in_ram,
            "policy",
            "layers whose routed experts stay in host memory: a token reads few of them",
        )
    return found


def _cache_ram(inventory: Inventory) -> Setting:
    # Based on total memory: free memory changes from start to start, and the plan with it.
    weights = inventory.model.gguf.size if inventory.model.gguf else 0
    spare = max(inventory.host.ram_mib - (weights >> 20), 0) // 8
    if spare >= CACHE_RAM_MIB:
        return Setting(CACHE_RAM_MIB, "policy", "MiB of host memory for prompts seen before")
    reason = "MiB for prompts seen before: an eighth of the host memory that the weights leave"
    return Setting(spare, "policy", reason)


def _known(settings: Mapping[str, Setting], inventory: Inventory) -> dict[str, Setting]:
    """The settings; those whose option this build lacks have no value."""
    flags, version = inventory.engine.flags, inventory.engine.version
    return {
        name: setting
        if not flags or name == "speculative_config" or options.option(name) in flags
        else Setting(None, "policy", f"llama.cpp {version} has no {options.option(name)}")
        for name, setting in settings.items()
    }


def _environment(config: Config, gpus: Sequence[Gpu], cuda: bool) -> dict[str, Setting]:
    found = {
        "GGML_NO_BACKTRACE": Setting(
            "1",
            "policy",
            "a backtrace by gdb would keep a crashed engine, and its memory, alive for a while",
        )
    }
    if cuda:
        names = ",".join(map(device_name, gpus))
        found["CUDA_VISIBLE_DEVICES"] = Setting(names, "policy", "the cards of this plan")
        found["CUDA_DEVICE_ORDER"] = Setting(
            "PCI_BUS_ID", "policy", "cards are numbered as nvidia-smi numbers them"
        )
    for name, value in config.engine.env:
        found[name] = Setting(value, "user", "[engine] env")
    return found


def _warned(
    plan: Plan,
    config: Config,
    inventory: Inventory,
    gpus: Sequence[Gpu],
    words: Sequence[Typed],
) -> Plan:
    found = [str(note) for note in inventory.model.notes]
    found += [str(lack) for lack in (old_driver(gpus, inventory.engine.cuda),) if lack]
    if not gpus and (small := small_host(inventory.model, inventory.host)):
        found.append(str(small))
    found += idle_keys(config, USED, UNUSED, "llama.cpp")
    if config.policy.gpu_memory_utilization is not None and not gpus:
        found.append("[policy] gpu_memory_utilization has no effect on a plan without a card")
    for one in words:
        if not one.name:
            found.append(f'"{one.value}" in [engine] extra_args belongs to no option: remove it')
        elif inventory.engine.flags and one.words[0] not in inventory.engine.flags:
            found.append(
                f"llama.cpp {inventory.engine.version} has no {one.words[0]} and will refuse to"
                " start: remove it from [engine] extra_args"
            )
    if not is_loopback(config.server.host) and not (
        config.server.api_key_file or "api_key" in plan.verbatim
    ):
        found.append(
            f"the engine listens on {config.server.host} and the configuration sets no API key:"
            " anyone who can reach that address can use it; set [server] api_key_file, or host ="
            ' "127.0.0.1"'
        )
    memory = forecast(plan, inventory)
    found += misfit(memory)
    found += map(str, conflicts(plan, inventory))
    return replace(plan, warnings=tuple(found), advice=memory.advice)


def at_once(plan: Plan) -> int | None:
    """How many requests it answers at a time."""
    return count(plan.value("parallel"))


def context_of(plan: Plan) -> int | None:
    """The longest request in tokens."""
    return count(plan.value(CONTEXT))
