"""The draft depth of a model, as the operator or the mode sets it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from caovand.core.config.schema import AUTO_SPEC, MAX_DRAFT_DEPTH, MODES, Config, Mode, auto_spec
from caovand.core.facts.inventory import ModelCard
from caovand.core.plan import Setting, Unplannable
from caovand.engines.common.tensors import active_parameters, weights_of

DEPTHS: dict[Mode, int] = {"auto": 3, "stable": 3, "fast": 4}


def overruling(config: Config, environ: Mapping[str, str], typed: Collection[str]) -> str:
    """The setting that overrides a chosen mode's depth; "" if none does.

    `typed` are the verbatim options that configure drafting, as written.
    """
    for option in typed:
        return f"{option} is among [engine] extra_args"
    if choice := _variable(config, environ):
        return f"{AUTO_SPEC} is {choice}"
    return "" if config.policy.mtp is None else f"[policy] mtp is {config.policy.mtp}"


def depth(config: Config, mode: Mode, environ: Mapping[str, str]) -> tuple[int, Setting]:
    """The depth, and its origin and reason in a setting without a value."""
    choice = _variable(config, environ)
    if choice.isdecimal() and int(choice) <= MAX_DRAFT_DEPTH:
        return int(choice), Setting(None, "user", f"{AUTO_SPEC} is {choice}")
    if choice in MODES:
        return DEPTHS[choice], Setting(None, "policy", f"{AUTO_SPEC} is {choice}")
    if choice:
        raise Unplannable(
            f"cannot use {AUTO_SPEC}={choice}: it is neither a depth from 0 to {MAX_DRAFT_DEPTH}"
            f" nor a mode; use one of {', '.join(MODES)}"
        )
    if config.policy.mtp is not None:
        return config.policy.mtp, Setting(None, "user", f"[policy] mtp is {config.policy.mtp}")
    reason = f"mode {mode} drafts {DEPTHS[mode]} tokens"
    if mode != "auto":
        return DEPTHS[mode], Setting(None, "user", reason)
    if config.policy.workload == "batch":
        return 0, Setting(None, "policy", "many users fill each step without drafts")
    return DEPTHS[mode], Setting(None, "policy", reason)


def billions_active(model: ModelCard) -> str:
    """The active parameters as publishers count them: those of an "A3B" include the head."""
    head = weights_of(model, "head") or weights_of(model, "embedding")
    return f"{(active_parameters(model) + head) / 1e9:.0f} billion"


def contested(model: ModelCard) -> str:
    """The published evidence on drafts for a mixture of experts with few active parameters."""
    return (
        f"with about {billions_active(model)} active parameters, published runs with drafts "
        "range from 23 % slower to 27 % faster"
    )


def _variable(config: Config, environ: Mapping[str, str]) -> str:
    return (auto_spec(config, environ) or "").strip()
