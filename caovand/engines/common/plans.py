"""Parts of a planner that engines share: cards, address, environment, the rungs that a degraded
plan keeps, and warnings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace

from caovand.core.addresses import is_loopback
from caovand.core.config.schema import Config
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard, device_name
from caovand.core.healing.degraded import kept_steps
from caovand.core.model_task import TITLES
from caovand.core.plan import Misfit, Plan, Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.options import count

DAEMON_KEYS = frozenset({"ladder"})
"""Keys that are "auto" by default and do not affect a plan."""


def choose_cards(config: Config, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards that [engine] gpus lists, or all; raises Unplannable if one of them is missing."""
    listed = config.engine.gpus
    gpus = tuple(gpu for gpu in inventory.gpus if listed is None or gpu.index in listed)
    if listed is not None and (missing := set(listed) - {gpu.index for gpu in gpus}):
        raise Unplannable(
            f"cannot use GPU {min(missing)} of [engine] gpus: no such card exists; `nvidia-smi "
            "-L` lists them",
            "gpu-absent",
        )
    return gpus


def refuse_other_tasks(model: ModelCard, title: str) -> None:
    """Raise Unplannable for a model that generates no text, with an engine planned for text."""
    if model.task == "generate":
        return
    remedy = "llamacpp" if model.gguf else "vllm"
    raise Unplannable(
        f"cannot serve model {model.path} with {title}: its task is {TITLES[model.task]}, but "
        f'caovan plans {title} only for generated text; set [engine] kind = "{remedy}"'
    )


def refuse_beyond_limit(config: Config, model: ModelCard) -> None:
    """Raise Unplannable for a configured context that is longer than the model's own limit."""
    context, limit = config.model.max_model_len, model.max_model_len
    if context is not None and limit and model.limit_known and context > limit:
        raise Unplannable(
            f"cannot serve a context of {context} tokens: the model's own limit is {limit}; set"
            " [model] max_model_len to at most that"
        )


def cards_in(plan: Plan, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards that a plan lists; all if it lists none."""
    if plan.cards is None:
        return inventory.gpus
    return tuple(gpu for gpu in inventory.gpus if device_name(gpu) in plan.cards)


def device(gpus: Sequence[Gpu], build: str = "cpu") -> str:
    """The device of a plan: the cards' generations, or the engine's build without a card."""
    kinds = sorted({gpu.compute_capability for gpu in gpus})
    return "-".join(f"sm{major}{minor}" for major, minor in kinds) or build


def address(config: Config) -> dict[str, Setting]:
    """The host and port that the engine listens on."""
    return {
        key: Setting(getattr(config.server, key), config.origin("server", key), f"[server] {key}")
        for key in ("host", "port")
    }


def card_variables(gpus: Sequence[Gpu], no_card: str = "") -> dict[str, Setting]:
    """The variables that make only these cards visible to a CUDA engine."""
    visible = ",".join(map(device_name, gpus)) or no_card
    return {
        "CUDA_VISIBLE_DEVICES": Setting(visible, "policy", "the cards of this plan"),
        "CUDA_DEVICE_ORDER": Setting(
            "PCI_BUS_ID", "policy", "cards are numbered as nvidia-smi numbers them"
        ),
    }


def typed_variables(config: Config) -> dict[str, Setting]:
    """The operator's own environment of the engine."""
    return {name: Setting(value, "user", "[engine] env") for name, value in config.engine.env}


def context_of(plan: Plan) -> int | None:
    """The longest request in tokens, under the same name in every engine's plans."""
    return count(plan.value("max_model_len"))


def keep_steps(
    plan: Plan,
    remembered: Plan | None,
    may_keep: Callable[[str, Setting], bool] = lambda name, step: True,
) -> Plan:
    """Take the rungs of a degraded plan for the same model again, as far as `may_keep` allows.

    The plan itself if there is no rung to take.
    """
    if remembered is None or remembered.model != plan.model or not remembered.taken:
        return plan
    steps = kept_steps(remembered.settings, plan.verbatim)
    kept = {name: step for name, step in steps.items() if may_keep(name, step)}
    return replace(
        plan,
        settings={**plan.settings, **kept},
        env={**plan.env, **kept_steps(remembered.env)},
        taken=remembered.taken,
        others_mib=remembered.others_mib,
    )


def idle_keys(
    config: Config, used: Collection[str], reasons: Mapping[str, str], title: str
) -> Iterator[str]:
    """A warning for each key that is set and has no effect on this engine.

    Such are the keys that are "auto" by default and not `used` by its planner, and those with one
    of the `reasons`, which explain it.
    """
    for section in ("policy", "server", "model"):
        for key in fields(getattr(config, section)):
            reason = reasons.get(key.name, "that engine has no such setting")
            auto = key.default is None and key.name not in DAEMON_KEYS
            idle = key.name in reasons or (auto and key.name not in used)
            value = getattr(getattr(config, section), key.name)
            if idle and value not in (None, "", "none", "auto"):
                yield f"[{section}] {key.name} has no effect on {title}: {reason}"


def caveats_of(warnings: Iterable[str | Problem], memory: MemoryEstimate) -> tuple[Problem, ...]:
    """The caveats of a plan with these warnings; the last is that it does not fit, if so."""
    caveats = map(Problem.stated, warnings)
    return (*caveats, misfit(memory.lack, memory.advice)) if memory.fits is False else (*caveats,)


def misfit(lack: str, advice: Sequence[str]) -> Misfit:
    """The caveat that a plan does not fit, with the changes that would make it fit."""
    return Misfit("", f"it does not fit: {lack}", "; ".join(advice))


def exposure_warnings(
    config: Config, lack: str, remedy: str, risk: str = "can use it"
) -> Iterator[str]:
    """The warning that others reach the engine's address, which no key protects."""
    host = config.server.host
    if not is_loopback(host):
        yield (
            f"the engine listens on {host} and {lack}: anyone who can reach that address {risk};"
            f" {remedy}"
        )
