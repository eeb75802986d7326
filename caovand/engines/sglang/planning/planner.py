"""The policy: from configuration and inventory to the options of SGLang's server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from caovand.core.config.schema import Config, Mode
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import EngineInfo, Gpu, Inventory
from caovand.core.facts.shortfalls import old_driver, small_host
from caovand.core.plan import Plan, Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.chat_formats import unparsed_warnings
from caovand.engines.common.options import HIDDEN, count
from caovand.engines.common.plans import (
    address,
    card_variables,
    caveats_of,
    device,
    exposure_warnings,
    idle_keys,
    keep_steps,
    refuse_other_tasks,
    typed_variables,
)
from caovand.engines.common.tensors import has_few_active
from caovand.engines.sglang import options
from caovand.engines.sglang.memory.forecast import forecast, served_at_once, why_unmodelled
from caovand.engines.sglang.memory.states import SLOTS
from caovand.engines.sglang.memory.steps import EXPANDED_TOKENS
from caovand.engines.sglang.options import ATTENTION, CONTEXT, RANKS, REPLICAS
from caovand.engines.sglang.planning import cards, chat_parsers, drafting
from caovand.engines.sglang.planning.settings import drafts_cost, memory_settings
from caovand.engines.sglang.probe import HOW, MIN_RELEASE

EXPANDED = "SGLANG_MAX_KV_CHUNK_CAPACITY"
QUIET_HEALTH = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"
WATCHDOG_HANGS = 4
"""Our hang detection acts first, unless kernels compile: then it waits three times as long as
SGLang's own watchdog."""
USED = frozenset({
    "served_name", "max_model_len", "text_only", "tool_call_parser", "reasoning_parser", "mtp",
    "dtype", "gpu_memory_utilization", "kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens",
    "tensor_parallel_size", "cuda_graphs",
})  # fmt: skip
"""The keys that default to "auto" and that this planner reads."""
UNUSED = {
    "activations": "SGLang chooses the kernels for quantised weights",
    "lm_head": "caovan's kernels are for vLLM",
    "revision": "the model is a folder on this machine",
}
"""Why other keys have no effect here."""
FOR_WEIGHTS, WEIGHTS_MARGIN_MIB = 0.9, 2304
"""The fraction of a card that weights may take for vLLM to have room next to them, or the room that
it then has."""
FREE_OF_OTHERS_MIB = 512
"""Memory of a card that the driver keeps while no program uses it."""
NEVER_RUN = (
    "SGLang has never been tested under caovan on cards older than compute capability 8.0, and "
    'its wheels have no kernels for them; [engine] kind = "vllm" supports them'
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
    engine, model = inventory.engine, inventory.model
    typed = options.values(config.engine.extra_args, engine.switches)
    _refuse_unsupported(config, inventory, typed)
    refuse_other_tasks(model, "SGLang")
    gpus = cards.choose(config, inventory)
    drafts = drafting.speculative_config(config, inventory, mode, environ, typed)
    old = any(gpu.compute_capability < cards.FULL_CARD for gpu in gpus)
    sized = memory_settings(config, inventory, gpus, typed, drafts, old=old)
    costly = not why_unmodelled(model) and (model.hybrid or has_few_active(model))
    if drafts.value and drafts.origin == "policy" and costly:
        none = Setting(None, "policy", "")
        plain = memory_settings(config, inventory, gpus, typed, none, old=old)
        if cost := drafts_cost(config, model, sized, plain):
            ours = "their recurrent states" if model.hybrid else "they"
            reason = f"no drafts: {ours} would leave room for {cost}"
            drafts, sized = replace(none, reason=reason), plain
    settings = {**_server(config, inventory), **sized, options.DRAFTING: drafts}
    settings |= _kernels(config, old=old)
    if whole := cards.whole_experts(model, settings[RANKS].value):
        settings[options.WHOLE_EXPERTS] = whole
    rest = {
        name: Setting(HIDDEN if name in options.KEYS else value, "user", "passed verbatim")
        for name, value in typed.items()
    }
    values = {name: setting.value for name, setting in {**rest, **settings}.items()}
    used = _cards_with_most_memory(gpus, values[RANKS], options.replicas(values.get))
    groups = options.attention_groups(values.get)
    plan = Plan(
        model=model.path,
        settings={**settings, **rest},
        env=_environment(config, inventory.engine, used, groups),
        extra_args=config.engine.extra_args,
        verbatim=frozenset(typed),
        device=device(used),
        engine=f"{engine.python} {engine.version}",
    )
    _refuse_misfit(plan, inventory)
    plan = keep_steps(plan, remembered)
    _check_options(plan, inventory)
    memory = forecast(plan, inventory)
    warnings = _warnings(plan, config, inventory, used, memory, old=old)
    return replace(plan, caveats=caveats_of(warnings, memory), advice=memory.advice)


def _refuse_unsupported(config: Config, inventory: Inventory, typed: Mapping[str, Any]) -> None:
    """Refuse requests that SGLang cannot meet."""
    if inventory.model.gguf is not None:
        raise Unplannable(
            f"cannot serve {inventory.model.path} with SGLang: it is a GGUF file; set [engine] "
            'kind = "llamacpp"'
        )
    if config.server.api_key_file:
        raise Unplannable(
            "cannot require the key in [server] api_key_file with SGLang: it accepts a key only "
            "on its command line, which every user of this machine can read; put a proxy that "
            "checks keys in front of it"
        )
    for name, key in (
        ("config", "[engine] extra_args themselves"), ("host", "[server] host"),
        ("port", "[server] port"), ("model_path", "[model] path"),
    ):  # fmt: skip
        if name in typed:
            raise Unplannable(
                f"cannot pass {options.option(name)} of [engine] extra_args: set {key} instead"
            )
    if "CUDA_VISIBLE_DEVICES" in dict(config.engine.env):
        raise Unplannable(
            "cannot use CUDA_VISIBLE_DEVICES of [engine] env: set [engine] gpus instead"
        )
    for name in (CONTEXT, options.REQUESTS, RANKS, REPLICAS, options.ATTENTION_GROUPS):
        if name in typed and count(typed[name]) is None:
            raise Unplannable(
                f"cannot use {options.option(name)} {typed[name]} of [engine] extra_args: it is not"
                " a whole number of at least 1; correct it"
            )
    for name, typed_name, known in (
        ("tool_call_parser", config.server.tool_call_parser, inventory.engine.tool_parsers),
        ("reasoning_parser", config.server.reasoning_parser, inventory.engine.reasoning_parsers),
    ):
        if typed_name not in (None, "none") and known and typed_name not in known:
            raise Unplannable(
                f'cannot use [server] {name} "{typed_name}": SGLang has no such parser; use one of'
                f" {', '.join(sorted(known))}"
            )


def _server(config: Config, inventory: Inventory) -> dict[str, Setting]:
    model, watch = config.model, config.watch
    name = model.served_name or inventory.model.path.rstrip("/").rpartition("/")[2]
    patience = WATCHDOG_HANGS * watch.hang_s + watch.confirm_s
    settings = {
        **address(config),
        "served_model_name": Setting(
            name,
            "user" if model.served_name else "policy",
            "[model] served_name" if model.served_name else "the last part of the path",
        ),
        "enable_metrics": Setting(True, "policy", "caovan watches its counters for progress"),
        "watchdog_timeout": Setting(
            max(round(patience), 300),
            "policy",
            "caovan detects a hang first and keeps its evidence",
        ),
        "log_level_http": Setting("warning", "policy", "keeps a line per request out of the log"),
    }
    settings |= chat_parsers.settings(config, inventory)
    optional: tuple[tuple[str, Any, str], ...] = (
        ("chat_template", model.chat_template or None, "[model] chat_template"),
        ("trust_remote_code", model.trust_remote_code or None, "[model] trust_remote_code"),
        ("language_model_only", model.text_only or None, "[model] text_only"),
    )
    for option, value, key in optional:
        if value is not None:
            settings[option] = Setting(value, "user", key)
    return settings


def _kernels(config: Config, *, old: bool) -> dict[str, Setting]:
    """Settings of attention, types and graphs; others are left to SGLang."""
    kernels = {}
    if old:
        reason = "Triton compiles its kernels for cards before compute capability 8.0"
        kernels[ATTENTION] = Setting("triton", "policy", reason)
        kernels["sampling_backend"] = Setting(
            "pytorch", "policy", "PyTorch's sampler needs no compiled kernels"
        )
    graphs = config.policy.cuda_graphs
    graphs_off = Setting(options.GRAPHS_OFF, "user", "[policy] cuda_graphs")
    if graphs == "none":
        kernels |= {options.DECODE_GRAPHS: graphs_off, options.PREFILL_GRAPHS: graphs_off}
    elif graphs == "full_decode_only":
        kernels[options.PREFILL_GRAPHS] = graphs_off
    elif graphs is not None:
        raise Unplannable(
            f'cannot use [policy] cuda_graphs "{graphs}" with SGLang: use none or '
            "full_decode_only, or remove the key to let SGLang choose"
        )
    return kernels


def _cards_with_most_memory(gpus: tuple[Gpu, ...], ranks: Any, replicas: int) -> tuple[Gpu, ...]:
    """As many cards as all replicas of the model are split over, those with the most free
    memory."""
    many = (count(ranks) or 1) * replicas
    freest = sorted(gpus, key=lambda gpu: -gpu.free_mib)[:many]
    return tuple(sorted(freest, key=lambda gpu: gpu.index))


def _environment(
    config: Config, engine: EngineInfo, gpus: tuple[Gpu, ...], groups: int
) -> dict[str, Setting]:
    ours = {
        **card_variables(gpus),
        QUIET_HEALTH: Setting(
            "false", "policy", "a health check generates no token, so an idle card stays idle"
        ),
    }
    if groups > 1:
        ours[EXPANDED] = Setting(
            EXPANDED_TOKENS // groups,
            "policy",
            "each card expands the cached keys and values of all heads, so it handles fewer "
            "tokens at once",
        )
    typed = typed_variables(config)
    if engine.cuda_home and "CUDA_PATH" not in typed:
        reason = "the engine's own compiler, for the CUDA version of its torch"
        ours["CUDA_HOME"] = Setting(engine.cuda_home, "policy", reason)
    return ours | typed


def _check_options(plan: Plan, inventory: Inventory) -> None:
    """Refuse a plan that this SGLang's parser would refuse."""
    engine = inventory.engine
    choices = dict(engine.choices)
    for name, setting in plan.settings.items():
        option, value = options.option(name), setting.value
        if value is None or name == CONTEXT or not engine.flags:
            continue
        if option not in engine.flags:
            raise Unplannable(
                f"cannot use {option}: SGLang {engine.version} has no such option;"
                f" {_removal_remedy(setting, verbatim=name in plan.verbatim)}"
            )
        known = choices.get(option)
        if known and not isinstance(value, (list, bool)) and str(value) not in known:
            raise Unplannable(
                f'cannot use {option} "{value}" ({setting.reason}): SGLang {engine.version} '
                f"accepts only {', '.join(known)}"
            )


def _refuse_misfit(plan: Plan, inventory: Inventory) -> None:
    """Raise Unplannable if the cards have no room for the smallest useful context, even while
    nothing else uses them. Sizes that the operator sets stand."""
    sizes = (plan.settings[name] for name in (CONTEXT, options.SHARE, RANKS))
    if any(setting.origin == "user" for setting in sizes):
        return
    alone = tuple(replace(gpu, free_mib=max(gpu.free_mib, gpu.total_mib - FREE_OF_OTHERS_MIB))
                  for gpu in inventory.gpus)  # fmt: skip
    memory = forecast(plan, replace(inventory, gpus=alone))
    if memory.fits is False:
        name, ranks = inventory.model.path.rstrip("/").rpartition("/")[2], plan.value(RANKS)
        cards = "one card" if ranks == 1 else f"{ranks} cards"
        raise Unplannable(
            f"cannot serve {name} with SGLang on {cards}: {memory.lack}; "
            f"{_leaner_engine(memory, alone)}use a checkpoint quantised to fewer bits, or a GGUF "
            'version ([engine] kind = "llamacpp"), part of which can stay in host memory'
        )


def _leaner_engine(memory: MemoryEstimate, gpus: Sequence[Gpu]) -> str:
    """The engine that needs less memory for its steps, if the cards hold more than the weights."""
    smallest = min(gpu.free_mib for gpu in gpus)
    if memory.weights_mib > max(FOR_WEIGHTS * smallest, smallest - WEIGHTS_MARGIN_MIB):
        return ""
    return 'set [engine] kind = "vllm", which uses less memory for steps, or '


def _removal_remedy(setting: Setting, *, verbatim: bool) -> str:
    """The remedy for an option that the installed release lacks."""
    if verbatim:
        return "remove it from [engine] extra_args"
    if setting.origin == "user":
        return f"remove {setting.reason}"
    return f"install sglang {MIN_RELEASE} or newer: {HOW}"


def _warnings(
    plan: Plan,
    config: Config,
    inventory: Inventory,
    gpus: tuple[Gpu, ...],
    memory: MemoryEstimate,
    *,
    old: bool,
) -> Iterator[str | Problem]:
    yield from inventory.model.notes
    lacks = (
        old_driver(gpus, inventory.engine.cuda),
        small_host(inventory.model, inventory.host),
    )
    yield from filter(None, lacks)
    if old:
        yield NEVER_RUN
    yield from unparsed_warnings(inventory.model, plan.settings)
    yield from idle_keys(config, USED, UNUSED, "SGLang")
    if "api_key" not in plan.verbatim:
        yield from exposure_warnings(
            config, "requires no API key", 'set host = "127.0.0.1", with a proxy in front of it'
        )
    if memory.fits and (served := served_at_once(plan, inventory)):
        yield (
            f"SGLang will serve {served} requests at once instead of "
            f"{plan.value(options.REQUESTS)}: each needs {SLOTS} recurrent states, and memory "
            f"has no room for more; set [policy] max_num_seqs = {served}, or add "
            f"{options.option(options.NO_PREFIXES)} to [engine] extra_args, then each needs one"
        )


def at_once(plan: Plan) -> int | None:
    """The number of requests that the engine answers at a time."""
    each = count(plan.value(options.REQUESTS))
    return each and each * options.replicas(plan.value)
