"""The policy: from configuration and inventory to the variables of `ollama serve`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from types import MappingProxyType

from caovand.core.addresses import is_loopback
from caovand.core.config.schema import Config, Mode
from caovand.core.facts.inventory import Gpu, Inventory, device_name
from caovand.core.facts.occupancy import host_reserve_mib
from caovand.core.plan import Plan, Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.cards import compiled_for
from caovand.engines.common.gguf import sizing
from caovand.engines.common.gguf import slots as requests
from caovand.engines.common.gguf.sizes import GgufLoad, why_undividable
from caovand.engines.common.plans import (
    chosen_cards,
    device,
    idle_keys,
    keep_steps,
    misfit_warnings,
    refuse_other_tasks,
)
from caovand.engines.ollama import command, names
from caovand.engines.ollama.planning import variables
from caovand.engines.ollama.planning.forecast import forecast, rooms_of

EIGHT_BITS = "q8_0"
USED = frozenset({
    "served_name", "max_model_len", "gpu_memory_utilization", "kv_cache_dtype", "max_num_seqs",
})  # fmt: skip
"""The keys that default to "auto" and that this planner reads."""
UNUSED = {
    "dtype": "the file determines its compute types",
    "cuda_graphs": "Ollama itself decides about graphs",
    "mtp": "Ollama itself decides about drafting",
    "max_num_batched_tokens": "only a Modelfile or a request sets a batch",
    "tensor_parallel_size": "Ollama uses as many of the cards as a model needs",
    "tool_call_parser": "tool calls are read by the model's template",
    "reasoning_parser": "reasoning is read by the model's template",
    "chat_template": "the template is part of the model",
    "revision": "a tag is part of the name",
}
"""Why other keys have no effect here."""
UNCOUNTED = (
    "Ollama reports no counters: a model's runner that hangs is found only by test completions; set"
    " [watch] idle_probe_s, and confirm_s to more than your longest answer takes"
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
    load, context, cache, slots = _size_load(config, inventory, gpus, typed, overhead)
    settings = {
        "host": Setting(config.server.host, config.origin("server", "host"), "[server] host"),
        "port": Setting(config.server.port, config.origin("server", "port"), "[server] port"),
        "served_model_name": Setting(config.model.path, "user", "Ollama serves it by its own name"),
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
            "attention in one pass needs less memory, and a quantised cache needs it",
        ),
        variables.CACHE_TYPE: cache,
        variables.LOADED: Setting("1", "policy", "the plan assumes that no other model is loaded"),
        variables.NO_PRUNE: Setting("1", "policy", "files of an interrupted download are kept"),
        variables.LOAD_TIMEOUT: Setting("10m", "policy", "as long as a completion may take here"),
        **overhead,
        **_card_variables(gpus, inventory),
    }  # fmt: skip
    env |= {name: Setting(value, "user", "[engine] env") for name, value in typed.items()}
    plan = Plan(
        model=config.model.path,
        settings=settings,
        env=env,
        device=device(gpus),
        engine=f"{inventory.engine.executable} {inventory.engine.version}",
    )
    return _with_warnings(keep_steps(plan, remembered), config, inventory, gpus)


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
            "cannot ask for an API key with Ollama: its server checks none; remove [server]"
            " api_key_file, and put a proxy that checks a key in front of it"
        )
    if config.model.served_name not in (None, name):
        wanted = config.model.served_name
        raise Unplannable(
            f"cannot serve {name} as {wanted}: Ollama serves a model by its own name; run `ollama"
            f" cp {name} {wanted}` and set [model] path to the new name"
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
    gpus = chosen_cards(config, inventory)
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
        why = "bytes of the unified memory left for the host, which would hang without them"
        return {variables.OVERHEAD: Setting(str(reserve), "policy", why)} if reserve else {}
    left = max(int(gpu.total_mib * (1 - share)) for gpu in gpus) << 20
    return {variables.OVERHEAD: Setting(str(left), "user", "[policy] gpu_memory_utilization")}


def _size_load(
    config: Config,
    inventory: Inventory,
    gpus: tuple[Gpu, ...],
    typed: Mapping[str, str],
    overhead: Mapping[str, Setting],
) -> tuple[GgufLoad, Setting, Setting, Setting]:
    """The load with its context, cache type and number of parallel requests."""
    kind, slots = _choose_cache_type(config, typed), _choose_slots(config, inventory, gpus, typed)
    flash = typed.get(variables.FLASH, "1") not in variables.OFF
    workload = config.policy.workload
    load = GgufLoad(
        0, int(slots.value), keys=kind.value, values=kind.value, flash=flash, whole_layers=True,
        filled=sizing.FILLED[workload],
    )  # fmt: skip
    loads = [load]
    fits_heads = not why_undividable(EIGHT_BITS, inventory.model.head_dim)
    if gpus and flash and fits_heads and kind.origin == "policy":
        loads.append(replace(load, keys=EIGHT_BITS, values=EIGHT_BITS))
    if gpus and slots.origin == "policy":
        loads += chain.from_iterable(zip(*map(requests.fewer, loads), strict=True))
    model, wanted = inventory.model, config.model.max_model_len
    if wanted is not None and model.max_model_len and wanted > model.max_model_len:
        raise Unplannable(
            f"cannot serve a context of {wanted} tokens: the model's own limit is"
            f" {model.max_model_len}; set [model] max_model_len to at most that"
        )
    host = inventory.host
    left = (
        str(overhead[variables.OVERHEAD].value) if overhead else typed.get(variables.OVERHEAD, "")
    )
    rooms = rooms_of(gpus, int(left) if left.isascii() and left.isdecimal() else 0)
    if wanted is not None:
        loads = [replace(one, context=wanted) for one in loads]
        sized = requests.choose_fixed(model, host, loads, gpus, rooms, workload)
        context = Setting(wanted, "user", "[model] max_model_len")
    else:
        most = load.slots
        if slots.origin == "policy":
            most = requests.max_slots(model, gpus, host, workload)
        sized = requests.choose(model, host, loads, gpus, rooms, workload, most)
        reason = _context_reason(sized, inventory, gpus, workload)
        if slots.origin == "policy" and sized.whole and sized.load.slots > 1:
            alone = replace(sized.load, slots=1)
            one = sizing.find_longest(model, host, alone, gpus, rooms, workload)
            if one.fits and one.whole and one.load.context > sized.load.context:
                reason += (
                    f" for {sized.load.slots} requests at once; one alone would have"
                    f" {one.load.context} ([policy] max_num_seqs = 1)"
                )
        context = Setting(sized.load.context, "policy", reason)
    chosen = sized.load
    if chosen.keys != kind.value:
        why = (
            "in half precision, layers would leave the cards, the context would be short, or far"
            " fewer requests would have room"
        )
        kind = Setting(chosen.keys, "policy", why)
    if chosen.slots > load.slots:
        why = "as many requests as memory has room for; each has the whole context"
        slots = Setting(str(chosen.slots), "policy", why)
    elif chosen.slots < load.slots:
        layers = "layers" if sized.whole else "more layers"
        why = f"with more, {layers} would leave the cards, or each context would be short"
        slots = Setting(str(chosen.slots), "policy", why)
    return chosen, context, kind, slots


def _context_reason(
    sized: sizing.PlacedLoad, inventory: Inventory, gpus: tuple[Gpu, ...], workload: str
) -> str:
    if sized.load.context == inventory.model.max_model_len:
        return "the model's own limit"
    if not sized.fits:
        return "no context fits; trying the smallest useful one"
    if gpus and sized.whole:
        return "the longest with every layer on the cards"
    if gpus:
        return f"enough for {workload}; a longer one would take layers off the cards"
    return "the longest that fits free memory, and that the CPU reads within minutes"


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


def _choose_slots(
    config: Config, inventory: Inventory, gpus: tuple[Gpu, ...], typed: Mapping[str, str]
) -> Setting:
    wanted = typed.get(variables.PARALLEL, "")
    if wanted:
        if not (wanted.isascii() and wanted.isdecimal() and int(wanted)):
            raise Unplannable(
                f'cannot use {variables.PARALLEL} "{wanted}" of [engine] env: set a whole number of'
                " at least 1"
            )
        return Setting(wanted, "user", "[engine] env")
    if config.policy.max_num_seqs is not None:
        return Setting(str(config.policy.max_num_seqs), "user", "[policy] max_num_seqs")
    workload = config.policy.workload
    reason = f"requests at once for {workload}; each has the whole context"
    many = requests.wanted(inventory.model, gpus, inventory.host, workload)
    return Setting(str(many), "policy", reason)


def _card_variables(gpus: tuple[Gpu, ...], inventory: Inventory) -> dict[str, Setting]:
    if inventory.engine.build == "cpu":
        return {}
    visible = ",".join(map(device_name, gpus)) or variables.NO_CARD
    return {
        variables.CARDS: Setting(visible, "policy", "the cards of this plan"),
        "CUDA_DEVICE_ORDER": Setting("PCI_BUS_ID", "policy", "cards are numbered by slot"),
    }


def _with_warnings(plan: Plan, config: Config, inventory: Inventory, gpus: tuple[Gpu, ...]) -> Plan:
    found = [str(note) for note in inventory.model.notes]
    if not config.watch.idle_probe_s:
        found.append(UNCOUNTED)
    if inventory.gpus and not gpus:
        found.append("no card is used: Ollama has no CUDA libraries here, or the cards are too old")
    found += idle_keys(config, USED, UNUSED, "Ollama")
    if variables.text(plan, variables.CACHE_TYPE) != "f16" and not variables.has_flash(plan):
        found.append("without flash attention Ollama keeps the cache in half precision")
    if not is_loopback(config.server.host):
        found.append(
            f"the engine listens on {config.server.host}, and Ollama checks no API key: anyone who"
            " can reach that address can use it, and download and delete models; set host ="
            ' "127.0.0.1"'
        )
    found += map(str, conflicts(plan, inventory))
    memory = forecast(plan, inventory)
    found += misfit_warnings(memory)
    return replace(plan, warnings=tuple(found), advice=memory.advice)


def conflicts(plan: Plan, inventory: Inventory) -> tuple[Problem, ...]:
    """Settings that cannot work on this machine."""
    lack = why_undividable(variables.text(plan, variables.CACHE_TYPE), inventory.model.head_dim)
    if not lack:
        return ()
    return (Problem("load the model", lack, 'set [policy] kv_cache_dtype = "f16"'),)
