"""A request for a plan, and how the rules answer it.

A flag that the operator passed verbatim is never decided again: its rule does not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from caovand.core.config.schema import MODES, Config, Mode, auto_spec
from caovand.core.facts.inventory import Inventory
from caovand.core.healing.degraded import kept_steps
from caovand.core.plan import Origin, Plan, Setting, Unplannable
from caovand.engines.common.plans import device, keep_steps
from caovand.engines.vllm.flags import command_line
from caovand.engines.vllm.flags.command_line import check_values
from caovand.engines.vllm.flags.spelling import PLUGINS, option, whole_number
from caovand.engines.vllm.machine.link_time import nodes_of
from caovand.engines.vllm.memory.settings import (
    candidate_of_plan,
    cards_of_plan,
    why_unmodelled,
    why_weights_unknown,
)
from caovand.engines.vllm.planning.decisions import DECIDED, SECOND
from caovand.engines.vllm.planning.devices import choose_gpus
from caovand.engines.vllm.planning.draft_schedule import by_batch_size
from caovand.engines.vllm.planning.environment import environment
from caovand.engines.vllm.planning.fit import reserve_next_to_others
from caovand.engines.vllm.planning.partial_plan import (
    PartialPlan,
    chosen_by_policy,
    decide,
    user,
    verbatim_setting,
)
from caovand.engines.vllm.planning.serving import task_of
from caovand.engines.vllm.planning.size import size_best
from caovand.engines.vllm.planning.warnings import refuse_missed_pins
from caovand.engines.vllm.sizing.pace import CandidatePace
from caovand.engines.vllm.sizing.space import WORKLOADS


@dataclass(frozen=True)
class VllmRequest:
    """A request for a plan: a configuration and a machine.

    `mode` is set by `caovanctl mode`, None if the file decides; `environ` is inherited by the
    engine; `remembered` is a degraded plan whose rungs are kept.
    """

    config: Config
    inventory: Inventory
    mode: Mode | None = None
    mode_origin: Origin = "user"
    environ: Mapping[str, str] = field(default_factory=dict)
    remembered: Plan | None = None

    def size(self) -> PartialPlan:
        """Size the best of all trials: its `choice` says whether it fits. Raises Unplannable."""
        return by_batch_size(reserve_next_to_others(size_best(self.begin())))

    def decide(self, sized: PartialPlan | None = None) -> PartialPlan:
        """Decide every setting, of a plan that is sized already or of the best. Raises
        Unplannable."""
        return decide(SECOND, sized or self.size())

    def lift(self, changes: Mapping[str, Any], inventory: Inventory | None = None) -> VllmRequest:
        """The request with other settings (None leaves one to the policy), or another machine.

        Verbatim flags of these names give way, and so do the ladder's rungs.
        """
        engine, model, policy = self.inventory.engine, self.config.model, self.config.policy
        words = self.config.engine.extra_args
        for name, value in changes.items():
            read = command_line.read(words, engine.flags, engine.switches)
            words = command_line.without(read, name)
            if hasattr(model, name):
                model = replace(model, **{name: value})
            elif hasattr(policy, name):
                policy = replace(policy, **{name: value})
            elif value is not None:
                words = (*words, option(name), str(value))
        section = replace(self.config.engine, extra_args=words)
        config = replace(self.config, model=model, policy=policy, engine=section)
        return replace(self, config=config, inventory=inventory or self.inventory, remembered=None)

    def write(self, partial: PartialPlan) -> Plan:
        """The plan with these decisions. Raises Unplannable if it misses a pinned key."""
        engine, verbatim = partial.engine, partial.verbatim
        settings = dict(partial.settings)
        for name in verbatim:
            if name not in DECIDED and (own := verbatim_setting(name, verbatim)):
                settings[name] = own
        for name in settings.keys() - verbatim.keys():
            if engine.flags and option(name) not in engine.flags:
                lacking = f"vLLM {engine.version} has no {option(name)}"
                settings[name] = Setting(None, "policy", lacking)
        plan = Plan(
            model=partial.model.path,
            settings=settings,
            env=environment(partial),
            extra_args=partial.config.engine.extra_args,
            verbatim=frozenset(verbatim),
            device=device(partial.cards, partial.engine.build),
            engine=f"{engine.python} {engine.version} {engine.plugin or ''}",
            task=partial.task,
        )
        plan = _keep_rungs(plan, self.remembered)
        refuse_missed_pins(partial, plan)
        return plan

    def begin(self) -> PartialPlan:
        """The partial plan that the rules begin with: the facts, and everything that is fixed."""
        config, inventory, engine = self.config, self.inventory, self.inventory.engine
        words = command_line.read(config.engine.extra_args, engine.flags, engine.switches)
        verbatim = command_line.values(words)
        check_values(verbatim)
        chosen = self._mode(verbatim)
        return PartialPlan(
            config=config,
            inventory=inventory,
            verbatim=verbatim,
            gpus=choose_gpus(config, inventory, verbatim),
            mode=chosen.value,
            mode_setting=chosen,
            auto_spec=auto_spec(config, self.environ),
            plugins=self._plugins(),
            why_unmodelled=why_unmodelled(verbatim, inventory.model),
            weights_unknown=bool(why_weights_unknown(verbatim, inventory.model)),
            dropped_variables=self._dropped_variables(),
            task=task_of(inventory.model, verbatim),
        )

    def _dropped_variables(self) -> frozenset[str]:
        """The variables without which a degraded plan runs, so that memory is counted without
        them."""
        kept = kept_steps(self.remembered.env) if self.remembered else {}
        return frozenset(name for name, setting in kept.items() if setting.value is None)

    def _plugins(self) -> str | None:
        """The plugins that vLLM may load: those that a rung left, or the operator's; None for
        all."""
        left = kept_steps(self.remembered.env).get(PLUGINS) if self.remembered else None
        own = dict(self.config.engine.env)
        return left.value if left else own.get(PLUGINS, self.environ.get(PLUGINS))

    def _mode(self, verbatim: Mapping[str, Any]) -> Setting:
        """The mode in effect: from the verbatim flags, `caovanctl mode`, or the file."""
        own = verbatim.get("additional_config")
        if isinstance(own, Mapping) and "caovan_mode" in own:
            name = own["caovan_mode"]
            if name not in MODES:
                raise Unplannable(
                    f'cannot use caovan_mode "{name}" of --additional-config: no such mode; use '
                    f"one of {', '.join(MODES)}"
                )
            return user(name, "caovan_mode of --additional-config")
        if self.mode is not None:
            return Setting(self.mode, self.mode_origin, f"`caovanctl mode {self.mode}`")
        typed = self.config.policy.mode
        return Setting(typed, "policy" if typed == "auto" else "user", f"[policy] mode is {typed}")


def _keep_rungs(plan: Plan, remembered: Plan | None) -> Plan:
    """The plan with the rungs of a degraded plan taken again, except those that ask for more than
    it does."""
    open_plan = replace(plan, verbatim=plan.verbatim - {"additional_config"})
    kept = keep_steps(open_plan, remembered, lambda name, step: not _raises(name, step, plan))
    if kept is open_plan:
        return plan
    config, ours = kept.settings.get("additional_config"), plan.value("additional_config")
    if config and isinstance(config.value, Mapping) and isinstance(ours, Mapping):
        # A step may have turned the plugin off there; the mode is the current one anyway.
        value = {**config.value, "caovan_mode": ours.get("caovan_mode")}
        settings = {**kept.settings, "additional_config": replace(config, value=value)}
        kept = replace(kept, settings=settings)
    return replace(kept, verbatim=plan.verbatim)


def _raises(name: str, kept: Setting, plan: Plan) -> bool:
    """Whether a step taken earlier would ask for more than the current plan does.

    Settings that depend on these follow the current plan: one without drafts, for example, has a
    prefix cache.
    """
    if name == "speculative_config":
        depth = kept.value.get("num_speculative_tokens") if isinstance(kept.value, Mapping) else 0
        return (whole_number(depth) or 0) > plan.mtp
    today = whole_number(plan.value(name))
    return name == "max_num_seqs" and today is not None and (whole_number(kept.value) or 0) > today


MIN_TOKENS_S = 0.6
"""Modelled tokens a second below which the engine is useless: clients give up."""


def answer_tokens_s(chosen: PartialPlan, plan: Plan) -> float:
    """Modelled tokens a second of one answer; of a batch, of all answers."""
    workload, inventory = WORKLOADS[chosen.config.policy.workload], chosen.inventory
    gpus, candidate = cards_of_plan(plan, inventory), candidate_of_plan(plan, inventory)
    pace = CandidatePace(inventory.model, candidate, gpus, workload, nodes_of(inventory))
    users = min(candidate.sequences, workload.users) if workload.batch else 1
    return pace.answering(candidate, users)


def refuse_crawling(chosen: PartialPlan, plan: Plan, remedies: tuple[str, ...] = ()) -> None:
    """Raise Unplannable if every step would wait too long for the weights in host memory.

    In a batch all answers count. An amount that the operator passes stands, and so does a model
    that generates nothing.
    """
    gib = chosen_by_policy(plan, "cpu_offload_gb")
    if not gib or not chosen.generates:
        return
    tokens_s = answer_tokens_s(chosen, plan)
    if tokens_s >= MIN_TOKENS_S:
        return
    name = chosen.inventory.model.path.rstrip("/").rpartition("/")[2]
    smaller = 'use a smaller model, or a GGUF version ([engine] kind = "llamacpp")'
    raise Unplannable(
        f"cannot serve {name} at a usable speed: {gib:g} GiB of weights per card would stay in "
        f"host memory, and vLLM would generate {tokens_s:.1f} tokens/s; "
        f"{', or '.join((*remedies, smaller))}, or pass --cpu-offload-gb {gib:g} in [engine] "
        "extra_args to start it anyway"
    )
