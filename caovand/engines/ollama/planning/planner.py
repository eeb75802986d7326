"""The policy: from configuration and inventory to the variables of `ollama serve`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from caovand.core.config.schema import Config, Mode
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.facts.occupancy import host_reserve_mib
from caovand.core.plan import Plan, Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.cards import compiled_for
from caovand.engines.common.gguf import choices
from caovand.engines.common.gguf.sizes import GgufLoad, why_undividable
from caovand.engines.common.gguf.sizing import LoadSizer, PlacedLoad
from caovand.engines.common.gguf.slots import choose_fixed
from caovand.engines.common.plans import (
    address,
    card_variables,
    caveats_of,
    choose_cards,
    device,
    exposure_warnings,
    idle_keys,
    keep_steps,
    refuse_beyond_limit,
    refuse_other_tasks,
    typed_variables,
)
from caovand.engines.ollama import command, names
from caovand.engines.ollama.planning import variables
from caovand.engines.ollama.planning.forecast import forecast, sizer_of

USED = frozenset({
    "served_name", "max_model_len", "gpu_memory_utilization", "kv_cache_dtype", "max_num_seqs",
})  # fmt: skip
"""The keys that default to "auto" and that this planner reads."""
UNUSED = {
    "dtype": "the file determines its compute types",
    "cuda_graphs": "Ollama decides whether to use CUDA graphs",
    "mtp": "Ollama decides whether to draft",
    "max_num_batched_tokens": "only a Modelfile or a request can set the batch size",
    "tensor_parallel_size": "Ollama uses as many cards as a model needs",
    "tool_call_parser": "Ollama derives the tool-call format from the model's template",
    "reasoning_parser": "Ollama derives the reasoning format from the model's template",
    "chat_template": "the template is part of the model",
    "revision": "a tag is part of the name",
}
"""Why other keys have no effect here."""
UNCOUNTED = (
    "Ollama reports no counters: only test completions can detect a hung runner; set [watch] "
    "idle_probe_s, and confirm_s to more than your longest answer takes"
)


def make_plan(
    config: Config,
    inventory: Inventory,
    *,
    mode: Mode | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
    remembered: Plan | None = None,
) -> Plan:
    """The plan for this configuration on this machine; raises Unplannable if there is none."""
    _refuse_unsupported(config)
    refuse_other_tasks(inventory.model, "Ollama")
    gpus = _choose_cards(config, inventory)
    typed = dict(config.engine.env)
    overhead = _choose_overhead(config, gpus, typed)
    left = str(overhead[variables.OVERHEAD].value) if overhead else typed.get(variables.OVERHEAD)
    sizer = sizer_of(inventory, gpus, variables.parse_count(left), config.policy.workload)
    load, context, cache, slots = _size_load(config, sizer, typed)
    settings = {
        **address(config),
        "served_model_name": Setting(
            config.model.path, "user", "Ollama serves a model under its own name"
        ),
        variables.CONTEXT: context,
    }
    env = {
        names.MODELS: Setting(
            names.folder_of(inventory.model.path), "policy", "the folder with the model"
        ),
        variables.PARALLEL: slots,
        variables.KEEP_ALIVE: Setting("-1", "policy", "the model stays loaded"),
        variables.FLASH: Setting(
            "1" if load.flash else "0", "policy",
            "flash attention uses less memory, and a quantised cache requires it",
        ),
        variables.CACHE_TYPE: cache,
        variables.LOADED: Setting("1", "policy", "the plan assumes that no other model is loaded"),
        variables.NO_PRUNE: Setting("1", "policy", "keeps the files of an interrupted download"),
        variables.LOAD_TIMEOUT: Setting("10m", "policy", "time that one completion may take"),
        **overhead,
        **(card_variables(gpus, variables.NO_CARD) if inventory.engine.build == "cuda" else {}),
        **typed_variables(config),
    }  # fmt: skip
    plan = Plan(
        model=config.model.path,
        settings=settings,
        env=env,
        device=device(gpus),
        engine=f"{inventory.engine.executable} {inventory.engine.version}",
    )
    plan = keep_steps(plan, remembered)
    memory = forecast(plan, inventory)
    warnings = _warnings(plan, config, inventory, gpus, memory)
    return replace(plan, caveats=caveats_of(warnings, memory), advice=memory.advice)


def _refuse_unsupported(config: Config) -> None:
    """Refuse requests that Ollama cannot meet."""
    typed, name = dict(config.engine.env), config.model.path
    if config.engine.extra_args:
        raise Unplannable(
            "cannot pass [engine] extra_args to Ollama: `ollama serve` takes no options; set its"
            " variables in [engine] env"
        )
    if config.server.api_key_file:
        raise Unplannable(
            "cannot require an API key with Ollama: its server does not check keys; remove "
            "[server] api_key_file, and put a proxy that checks keys in front of it"
        )
    if config.model.served_name not in (None, name):
        served = config.model.served_name
        raise Unplannable(
            f"cannot serve {name} as {served}: Ollama serves a model under its own name; run "
            f"`ollama cp {name} {served}` and set [model] path to the new name"
        )
    for variable, key in (
        (command.HOST, "[server] host and port"),
        (command.CONTEXT_LENGTH, "[model] max_model_len"),
        (variables.CARDS, "[engine] gpus"),
    ):
        if variable in typed:
            raise Unplannable(f"cannot use {variable} of [engine] env: set {key} instead")


def _choose_cards(config: Config, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards to use: those configured, else all that are new enough; none without CUDA."""
    if inventory.engine.build == "cpu":
        return ()
    gpus = choose_cards(config, inventory)
    return tuple(gpu for gpu in gpus if compiled_for(inventory.engine, gpu))


def _choose_overhead(
    config: Config, gpus: tuple[Gpu, ...], typed: Mapping[str, str]
) -> dict[str, Setting]:
    """The memory to leave free: by a configured share, or for the host with unified memory."""
    share = config.policy.gpu_memory_utilization
    if not gpus or variables.OVERHEAD in typed:
        return {}
    if share is None:
        reserve = max(host_reserve_mib(gpu.total_mib) if gpu.unified else 0 for gpu in gpus) << 20
        reason = "bytes of unified memory left for the host, which would hang without them"
        return {variables.OVERHEAD: Setting(str(reserve), "policy", reason)} if reserve else {}
    left = max(int(gpu.total_mib * (1 - share)) for gpu in gpus) << 20
    return {variables.OVERHEAD: Setting(str(left), "user", "[policy] gpu_memory_utilization")}


def _size_load(
    config: Config, sizer: LoadSizer, typed: Mapping[str, str]
) -> tuple[GgufLoad, Setting, Setting, Setting]:
    """The load with its context, cache type and number of requests at once."""
    kind, parallel = _choose_cache_type(config, typed), _choose_slots(config, sizer, typed)
    load = GgufLoad(
        0, parallel.value, keys=kind.value, values=kind.value,
        flash=typed.get(variables.FLASH, "1") not in variables.OFF, whole_layers=True,
        filled=sizer.workload.filled,
    )  # fmt: skip
    loads = choices.candidate_loads(sizer, load, parallel, (kind,))
    stated = config.model.max_model_len
    refuse_beyond_limit(config, sizer.model)
    if stated is not None:
        sized = choose_fixed(sizer, [replace(load, context=stated) for load in loads])
        context = Setting(stated, "user", "[model] max_model_len")
    else:
        sized = choices.choose_open(sizer, loads, parallel)
        reason = _why_context(config, sizer, sized, parallel)
        context = Setting(sized.load.context, "policy", reason)
    slots = choices.slots_of(sized, parallel)
    slots = replace(slots, value=str(slots.value))
    return sized.load, context, choices.cache_type_of(sized, kind), slots


def _why_context(config: Config, sizer: LoadSizer, sized: PlacedLoad, parallel: Setting) -> str:
    load, workload = sized.load, config.policy.workload
    reason = choices.why_context(sizer, sized, workload, "the free host memory")
    if parallel.origin == "policy" and sized.whole and load.slots > 1:
        alone = sizer.find_longest(replace(load, slots=1))
        if alone.fits and alone.whole and alone.load.context > load.context:
            reason += (
                f" for {load.slots} requests at once; a single request could have "
                f"{alone.load.context} ([policy] max_num_seqs = 1)"
            )
    return reason


def _choose_cache_type(config: Config, typed: Mapping[str, str]) -> Setting:
    if variables.CACHE_TYPE in typed:
        source, kind = "[engine] env", typed[variables.CACHE_TYPE]
    elif config.policy.kv_cache_dtype in (None, "auto"):
        return Setting("f16", "policy", "half precision loses nothing")
    else:
        source, kind = "[policy] kv_cache_dtype", str(config.policy.kv_cache_dtype)
    if kind not in variables.CACHE_TYPES:
        raise Unplannable(
            f'cannot use a cache of type "{kind}": Ollama has no such type; set {source} to one of'
            f" {', '.join(variables.CACHE_TYPES)}"
        )
    return Setting(kind, "user", source)


def _choose_slots(config: Config, sizer: LoadSizer, typed: Mapping[str, str]) -> Setting:
    parallel = typed.get(variables.PARALLEL, "")
    if not parallel:
        return choices.choose_slots(config, sizer)
    if not (parallel.isascii() and parallel.isdecimal() and int(parallel)):
        raise Unplannable(
            f'cannot use {variables.PARALLEL} "{parallel}" of [engine] env: set a whole number of'
            " at least 1"
        )
    return Setting(int(parallel), "user", "[engine] env")


def _warnings(
    plan: Plan,
    config: Config,
    inventory: Inventory,
    gpus: tuple[Gpu, ...],
    memory: MemoryEstimate,
) -> Iterator[str | Problem]:
    yield from inventory.model.notes
    if not config.watch.idle_probe_s:
        yield UNCOUNTED
    if inventory.gpus and not gpus:
        yield "no card is used: this Ollama has no CUDA libraries, or the cards are too old"
    yield from idle_keys(config, USED, UNUSED, "Ollama")
    if variables.text(plan, variables.CACHE_TYPE) != "f16" and not variables.has_flash(plan):
        yield "without flash attention Ollama keeps the cache in half precision"
    yield from exposure_warnings(
        config,
        "Ollama does not check API keys",
        'set host = "127.0.0.1"',
        risk="can use it, and download and delete models",
    )
    yield from conflicts(plan, inventory)


def conflicts(plan: Plan, inventory: Inventory) -> tuple[Problem, ...]:
    """Settings that cannot work on this machine."""
    lack = why_undividable(variables.text(plan, variables.CACHE_TYPE), inventory.model.head_dim)
    if not lack:
        return ()
    return (Problem("load the model", lack, 'set [policy] kv_cache_dtype = "f16"'),)
