"""The policy: from configuration and inventory to the options of llama-server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from caovand.core.config.schema import Config, Mode
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.facts.shortfalls import old_driver, small_host
from caovand.core.plan import Plan, Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.options import HIDDEN, Typed, count, values
from caovand.engines.common.plans import (
    address,
    card_variables,
    caveats_of,
    device,
    exposure_warnings,
    idle_keys,
    keep_steps,
    typed_variables,
)
from caovand.engines.llamacpp.memory.forecast import forecast, speed
from caovand.engines.llamacpp.planning import cards, drafting, options, sizing, texts
from caovand.engines.llamacpp.planning.conflicts import conflicts
from caovand.engines.llamacpp.planning.options import CONTEXT

USED = frozenset({
    "served_name", "max_model_len", "mtp", "gpu_memory_utilization", "kv_cache_dtype",
    "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size",
})  # fmt: skip
"""The keys that default to "auto" and that this planner reads."""
UNUSED = {
    "dtype": "a GGUF file determines its compute types",
    "cuda_graphs": "llama.cpp decides whether to use CUDA graphs",
    "tool_call_parser": "llama.cpp derives the tool-call format from the chat template",
    "reasoning_parser": "llama.cpp derives the reasoning format from the chat template",
    "revision": "the file is the revision",
}
"""Why other keys have no effect here."""
MIN_TOKENS_S = 10.0
"""Modelled tokens per second below which the CPU does not replace a card: people read half as fast,
but reading a prompt of 4,096 tokens takes minutes.
"""


def make_plan(
    config: Config,
    inventory: Inventory,
    *,
    mode: Mode | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
    remembered: Plan | None = None,
) -> Plan:
    """The plan for this configuration on this machine; raises Unplannable if there is none."""
    model, engine = inventory.model, inventory.engine
    if model.gguf is None:
        raise Unplannable(
            f"cannot serve model {model.path} with llama.cpp: it is not a GGUF file; set "
            '[engine] kind = "vllm", or download a GGUF version'
        )
    words = options.read(config.engine.extra_args, engine.flags, engine.switches)
    verbatim = values(words)
    _refuse_unsupported(verbatim)
    gpus = cards.choose(config, inventory)
    settings = _settings(config, inventory, gpus, verbatim, mode or config.policy.mode, environ)
    rest = {
        name: Setting(_masked_value(name, value), "user", "passed verbatim")
        for name, value in verbatim.items()
        if name != CONTEXT  # specified for all sequences together
    }
    plan = Plan(
        model=model.path,
        settings={**_known_options(settings, inventory), **rest},
        env=_environment(config, gpus, cuda=engine.build == "cuda"),
        extra_args=config.engine.extra_args,
        verbatim=frozenset(verbatim),
        device=device(gpus),
        engine=f"{engine.executable} {engine.version}",
        task=texts.task_of(model, verbatim),
    )
    _refuse_crawling(plan, config, inventory)
    plan = keep_steps(plan, remembered)
    memory = forecast(plan, inventory)
    warnings = _warnings(plan, config, inventory, gpus, words, memory)
    return replace(plan, caveats=caveats_of(warnings, memory), advice=memory.advice)


def _refuse_crawling(plan: Plan, config: Config, inventory: Inventory) -> None:
    """Raise Unplannable if the CPU would crawl, as it does through every long prompt, because the
    build cannot use any of the cards.

    A number of GPU layers set by the operator stands.
    """
    lack = cards.none_usable(config, inventory)
    tokens_s = speed(plan, inventory)
    if lack is None or "gpu_layers" in plan.verbatim or tokens_s is None:
        return
    if tokens_s >= MIN_TOKENS_S and config.policy.workload != "long":
        return
    raise Unplannable(
        f"cannot {lack.cannot}: {lack.fact}, and the CPU would generate {tokens_s:.1f} tokens/s; "
        f"{lack.remedy}, or pass --gpu-layers 0 in [engine] extra_args to start it on the CPU "
        "anyway",
        "backend-unsupported",
    )


def _refuse_unsupported(verbatim: Mapping[str, Any]) -> None:
    """Refuse verbatim values that llama-server does not accept."""
    for name in (CONTEXT, "parallel", "batch_size", "ubatch_size", "port"):
        if name in verbatim and count(verbatim[name]) is None and verbatim[name] != 0:
            raise Unplannable(
                f"cannot use {options.option(name)} {verbatim[name]} of [engine] extra_args: it "
                "is not a whole number of 0 or more; correct it"
            )


def _masked_value(name: str, value: Any) -> Any:
    return HIDDEN if name in options.CARRIERS else value


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
    request = sizing.SizingInput(config, inventory, gpus, verbatim)
    sized = sizing.settings(request, speculative.value or {})
    if speculative.value and speculative.origin == "policy" and sizing.EXPERTS_IN_RAM in sized:
        reason = (
            "no drafts while experts are in host memory: each would read different experts there"
        )
        speculative = Setting(None, "policy", reason)
        sized = sizing.settings(request, {})
    settings = {
        **address(config),
        "served_model_name": _name(config, inventory),
        **sized,
        "flash_attn": Setting(
            "on",
            "policy",
            "flash attention uses less memory, and a quantised cache requires it",
        ),
        "threads": Setting(host.cpus, "policy", f"one per core ({host.cpus})"),
        "speculative_config": speculative,
        "fit": Setting("off", "policy", "caovan decides what fits"),
        "cors_origins": Setting(
            "localhost",
            "policy",
            "keeps other hosts' web pages from reaching the engine through a browser",
        ),
        "metrics": Setting(True, "policy", "caovan watches its counters for progress"),
        "log_verbosity": Setting(4, "policy", "the log has buffer sizes, but no prompts"),
        "log_colors": Setting("off", "policy", "caovan reads the log"),
        "offline": Setting(True, "policy", "the model is on this machine: no download is needed"),
    }
    if config.model.chat_template:
        settings["chat_template"] = Setting(
            config.model.chat_template, "user", "[model] chat_template"
        )
    return {**settings, **texts.settings(texts.task_of(inventory.model, verbatim))}


def _name(config: Config, inventory: Inventory) -> Setting:
    if config.model.served_name is not None:
        return Setting(config.model.served_name, "user", "[model] served_name")
    file = inventory.model.path.rpartition("/")[2].removesuffix(".gguf")
    return Setting(
        file.partition("-00001-of-")[0],
        "policy",
        "the name of the file; llama.cpp also answers to any other name",
    )


def _known_options(settings: Mapping[str, Setting], inventory: Inventory) -> dict[str, Setting]:
    """The settings, without a value if this build lacks the option."""
    flags, version = inventory.engine.flags, inventory.engine.version
    return {
        name: setting
        if not flags or name == "speculative_config" or options.option(name) in flags
        else Setting(None, "policy", f"llama.cpp {version} has no {options.option(name)}")
        for name, setting in settings.items()
    }


def _environment(config: Config, gpus: Sequence[Gpu], *, cuda: bool) -> dict[str, Setting]:
    backtrace = Setting(
        "1",
        "policy",
        "a gdb backtrace would keep a crashed engine and its memory alive for a while",
    )
    visible = card_variables(gpus) if cuda else {}
    return {"GGML_NO_BACKTRACE": backtrace, **visible, **typed_variables(config)}


def _warnings(
    plan: Plan,
    config: Config,
    inventory: Inventory,
    gpus: Sequence[Gpu],
    words: Sequence[Typed],
    memory: MemoryEstimate,
) -> Iterator[str | Problem]:
    yield from inventory.model.notes
    lacks = (
        old_driver(gpus, inventory.engine.cuda),
        None if gpus else small_host(inventory.model, inventory.host),
    )
    yield from filter(None, lacks)
    yield from cards.left_out(config, inventory)
    yield from idle_keys(config, USED, UNUSED, "llama.cpp")
    if config.policy.gpu_memory_utilization is not None and not gpus:
        yield "[policy] gpu_memory_utilization has no effect on a plan without a card"
    for typed in words:
        if not typed.name:
            yield f'"{typed.value}" in [engine] extra_args does not belong to any option: remove it'
        elif inventory.engine.flags and typed.words[0] not in inventory.engine.flags:
            yield (
                f"llama.cpp {inventory.engine.version} has no {typed.words[0]} and will refuse to"
                " start: remove it from [engine] extra_args"
            )
    if not (config.server.api_key_file or "api_key" in plan.verbatim):
        yield from exposure_warnings(
            config,
            "the configuration sets no API key",
            'set [server] api_key_file, or host = "127.0.0.1"',
        )
    yield from conflicts(plan, inventory)


def at_once(plan: Plan) -> int | None:
    """The number of requests that the engine answers at a time."""
    return count(plan.value("parallel"))
