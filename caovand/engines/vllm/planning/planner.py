"""The policy: from configuration and inventory to a plan, by the rules.

A flag the operator gave verbatim is never decided again: its rule does not run. Files of llama.cpp
are refused: vLLM reads them slowly, and only with another folder's config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from caovand.core.config import MODES, Config, Mode, auto_spec
from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.healing.degraded import kept_steps
from caovand.core.model_source.gguf import TYPE
from caovand.core.plan import Origin, Plan, Setting, Unplannable
from caovand.engines.vllm.flags import command_line
from caovand.engines.vllm.flags.command_line import check_values
from caovand.engines.vllm.flags.spelling import option, whole_number
from caovand.engines.vllm.machine.link_time import nodes_of
from caovand.engines.vllm.machine.ranks import stages
from caovand.engines.vllm.memory.settings import (
    candidate_of_plan,
    cards_of_plan,
    gpus_of,
    unmodelled,
    weights_unknown,
)
from caovand.engines.vllm.memory.shards import pinned_gib
from caovand.engines.vllm.planning.advice import Case, advise, in_fewer_bits, sparing
from caovand.engines.vllm.planning.decisions import (
    DECIDED,
    SECOND,
    decide,
    forecast,
    verbatim_setting,
)
from caovand.engines.vllm.planning.devices import (
    all_without_other_processes,
    choose_gpus,
    holders,
    without_other_processes,
)
from caovand.engines.vllm.planning.environment import environment
from caovand.engines.vllm.planning.partial_plan import PLUGINS, PartialPlan, user
from caovand.engines.vllm.planning.serving import refuse_deaf, task_of
from caovand.engines.vllm.planning.splits import best_split, idle_warnings
from caovand.engines.vllm.planning.warnings import refuse_unmet, warnings_of
from caovand.engines.vllm.sizing.pace import WORKLOADS, Pace, step_cost


def refuse_gguf(model: ModelCard) -> None:
    """Raise Unplannable for a model in GGUF files, with the checkpoint that serves instead."""
    if model.gguf is None:
        return
    file = model.path.rpartition("/")[2]
    name = TYPE.split(file.removesuffix(".gguf"), maxsplit=1)[0] or "the model"
    raise Unplannable(
        f"cannot serve model {model.path} with vLLM: GGUF files are for llama.cpp; set [engine]"
        ' kind = "llamacpp", or download a 4-bit safetensors checkpoint, such as'
        f" {name}-AWQ or {name}-GPTQ-Int4"
    )


def make_plan(
    config: Config,
    inventory: Inventory,
    *,
    mode: Mode | None = None,
    mode_origin: Origin = "user",
    environ: Mapping[str, str] = MappingProxyType({}),
    remembered: Plan | None = None,
) -> Plan:
    """Return the plan for this configuration on this machine, or raise Unplannable.

    `mode` is set by `caovanctl mode`, None if the file decides; `environ` is inherited by the
    engine; `remembered` is a degraded plan whose rungs are kept.
    """
    refuse_gguf(inventory.model)
    refuse_deaf(inventory)

    def alternative(config: Config, inventory: Inventory) -> Plan | None:
        try:
            partial = _begin(config, inventory, mode, mode_origin, environ)
            plan = _write(decide(SECOND, best_split(partial)))
            _refuse_crawling(plan, inventory)
        except Unplannable:
            return None
        return plan

    partial = _begin(config, inventory, mode, mode_origin, environ, remembered)
    chosen = decide(SECOND, best_split(partial))
    plan = _write(chosen, remembered)
    warnings = [*warnings_of(chosen, plan), *idle_warnings(chosen), *_cost_of_others(plan, partial)]
    memory = forecast(plan, inventory)
    case = Case(config, inventory, plan, memory, alternative)
    offload = plan.value("cpu_offload_gb")
    gpus = gpus_of(plan, inventory)
    if gpus and isinstance(offload, (int, float)) and offload > 0:
        cost = step_cost(offload, inventory.model, gpus, 1 + plan.mtp)
        ranks = whole_number(plan.value("tensor_parallel_size")) or 1
        pinned = pinned_gib(offload, inventory.model, ranks) * stages(plan.values)
        remedies = tuple(filter(None, (in_fewer_bits(case), sparing(case))))
        _refuse_crawling(plan, inventory, remedies)
        parts = (
            f"weights are offloaded to host memory, {pinned:.1f} GiB of which they pin: {cost}",
            *remedies,
        )
        warnings.append("; ".join(parts))
    advice = plan.advice
    if memory.fits is False:
        advice = memory.advice or advise(case)
    if memory.fits is False and not memory.conflicts:  # which have warnings of their own
        have, need = memory.kv_mib / 1024, memory.needed_mib / 1024
        short = f"{have:.1f} GiB left for the cache, {need:.1f} GiB needed"
        short = memory.lack or memory.no_room or short
        warnings.append("; ".join((f"it does not fit: {short}", *advice[:2])))
    return replace(plan, advice=advice, warnings=tuple(warnings))


MIN_TOKENS_S = 0.6
"""Modelled tokens a second below which nobody is served: clients give up."""


def _refuse_crawling(plan: Plan, inventory: Inventory, remedies: tuple[str, ...] = ()) -> None:
    """Raise Unplannable if every step would wait too long for the weights in host memory.

    An amount that the operator passes stands.
    """
    offload = plan.settings.get("cpu_offload_gb")
    if offload is None or not offload.value or offload.origin != "policy":
        return
    gpus, candidate = cards_of_plan(plan, inventory), candidate_of_plan(plan, inventory)
    pace = Pace(inventory.model, candidate, gpus, WORKLOADS["chat"], nodes_of(inventory))
    tokens_s, gib = pace.answering(candidate), offload.value
    if tokens_s >= MIN_TOKENS_S:
        return
    name = inventory.model.path.rstrip("/").rpartition("/")[2]
    smaller = 'take a smaller model, or a GGUF file of it ([engine] kind = "llamacpp")'
    raise Unplannable(
        f"cannot serve {name} at a usable speed: {gib:g} GiB of weights a card would stay in"
        f" host memory, and vLLM would answer {tokens_s:.1f} tokens a second;"
        f" {', or '.join((*remedies, smaller))}, or pass"
        f" --cpu-offload-gb {gib:g} in [engine] extra_args to start it all the same"
    )


def _cost_of_others(plan: Plan, partial: PartialPlan) -> list[str]:
    """A warning if the context is shorter, or fewer cards are used, for what others hold."""
    inventory, others = partial.inventory, partial.inventory.others
    context = plan.settings.get("max_model_len")
    free = all_without_other_processes(inventory)
    busy = without_other_processes(partial.gpus) != partial.gpus or free.others != others
    if not context or context.origin != "policy" or not busy:
        return []
    try:
        gpus = choose_gpus(partial.config, free, partial.verbatim)
        alone = best_split(replace(partial, inventory=free, gpus=gpus))
    except Unplannable:
        return []
    lost, values = [], plan.values
    longer = alone.choice.candidate.context if alone.choice and not alone.unweighed else 0
    if isinstance(context.value, int) and longer > context.value:
        lost.append(f"the context is {context.value} tokens instead of {longer}")
    used = len(cards_of_plan(plan, inventory))
    if len(alone.cards) > used:
        lost.append(f"{used} instead of {len(alone.cards)} cards serve the model")
        values = alone.values  # those left out, too
    if not lost:
        return []
    remedy = "stop them and restart the engine, or name other cards in [engine] gpus"
    return [f"{holders(partial.gpus, others, values)}: {' and '.join(lost)}; {remedy}"]


def _begin(
    config: Config,
    inventory: Inventory,
    mode: Mode | None,
    mode_origin: Origin,
    environ: Mapping[str, str],
    remembered: Plan | None = None,
) -> PartialPlan:
    """The partial plan that the rules begin with: the facts, and what is fixed."""
    engine = inventory.engine
    words = command_line.read(config.engine.extra_args, engine.flags, engine.switches)
    verbatim = command_line.values(words)
    check_values(verbatim)
    chosen = _mode(config, verbatim, mode, mode_origin)
    return PartialPlan(
        config=config,
        inventory=inventory,
        verbatim=verbatim,
        gpus=choose_gpus(config, inventory, verbatim),
        mode=chosen.value,
        mode_setting=chosen,
        auto_spec=auto_spec(config, environ),
        plugins=_plugins(config, environ, remembered),
        unweighed=unmodelled(verbatim, inventory.model),
        weights_unknown=bool(weights_unknown(verbatim, inventory.model)),
        task=task_of(inventory.model, verbatim),
    )


def _write(partial: PartialPlan, remembered: Plan | None = None) -> Plan:
    """The plan of what was decided; raises Unplannable if it misses a pinned key."""
    engine, verbatim = partial.engine, partial.verbatim
    rest = {
        name: s
        for name in verbatim
        if (s := verbatim_setting(name, verbatim)) and name not in DECIDED
    }
    settings = {**partial.settings, **rest}
    plan = Plan(
        model=partial.model.path,
        settings={
            name: _drop_unknown(name, setting, partial) for name, setting in settings.items()
        },
        env=environment(partial),
        extra_args=partial.config.engine.extra_args,
        verbatim=frozenset(verbatim),
        device=_device(partial),
        engine=f"{engine.python} {engine.version} {engine.plugin or ''}",
        task=partial.task,
    )
    if remembered is not None:
        plan = _keep_rungs(plan, remembered)
    refuse_unmet(partial, plan)
    return plan


def _plugins(config: Config, environ: Mapping[str, str], remembered: Plan | None) -> str | None:
    """The plugins that vLLM may load: those a rung left, or the operator names; None for all."""
    left = kept_steps(remembered.env).get(PLUGINS) if remembered else None
    return left.value if left else dict(config.engine.env).get(PLUGINS, environ.get(PLUGINS))


def _mode(
    config: Config, verbatim: Mapping[str, Any], mode: Mode | None, mode_origin: Origin
) -> Setting:
    """The mode in force: from the verbatim flags, `caovanctl mode`, or the file."""
    own = verbatim.get("additional_config")
    if isinstance(own, Mapping) and "caovan_mode" in own:
        name = own["caovan_mode"]
        if name not in MODES:
            raise Unplannable(
                f'cannot use caovan_mode "{name}" of --additional-config: there is no such mode; '
                f"use one of {', '.join(MODES)}"
            )
        return user(name, "caovan_mode of --additional-config")
    if mode is not None:
        return Setting(mode, mode_origin, f"`caovanctl mode {mode}`")
    typed = config.policy.mode
    return Setting(typed, "policy" if typed == "auto" else "user", f"[policy] mode is {typed}")


def _device(partial: PartialPlan) -> str:
    kinds = sorted({gpu.compute_capability for gpu in partial.cards})
    return "-".join(f"sm{major}{minor}" for major, minor in kinds) or partial.engine.build


def _drop_unknown(name: str, setting: Setting, partial: PartialPlan) -> Setting:
    """The setting, without its value if this engine has no such flag."""
    if not partial.engine.flags or option(name) in partial.engine.flags or name in partial.verbatim:
        return setting
    return Setting(None, "policy", f"vLLM {partial.engine.version} has no {option(name)}")


def _keep_rungs(plan: Plan, remembered: Plan) -> Plan:
    """The plan with the ladder's steps of a degraded plan of the same model taken again."""
    if remembered.model != plan.model or not remembered.taken:
        return plan
    kept = kept_steps(remembered.settings, plan.verbatim - {"additional_config"})
    settings = {**plan.settings, **{n: s for n, s in kept.items() if not _raises(n, s, plan)}}
    config, ours = settings.get("additional_config"), plan.value("additional_config")
    if config and isinstance(config.value, Mapping) and isinstance(ours, Mapping):
        # A step may have turned the plugin off there; the mode is today's all the same.
        value = {**config.value, "caovan_mode": ours.get("caovan_mode")}
        settings["additional_config"] = replace(config, value=value)
    env = {**plan.env, **kept_steps(remembered.env)}
    return replace(
        plan, settings=settings, env=env, taken=remembered.taken, others_mib=remembered.others_mib
    )


def _raises(name: str, kept: Setting, plan: Plan) -> bool:
    """Whether a step taken earlier would ask for more than today's plan does.

    What depends on these was decided for today's: a plan without drafts has its prefix cache.
    """
    if name == "speculative_config":
        depth = kept.value.get("num_speculative_tokens") if isinstance(kept.value, Mapping) else 0
        return (whole_number(depth) or 0) > plan.mtp
    today = whole_number(plan.value(name))
    return name == "max_num_seqs" and today is not None and (whole_number(kept.value) or 0) > today
