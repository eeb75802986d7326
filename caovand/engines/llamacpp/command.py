"""Turn a plan into the command line and environment of llama-server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.engine.planning import Command
from caovand.core.facts.inventory import EngineInfo
from caovand.core.plan import Plan
from caovand.engines.common.options import count
from caovand.engines.llamacpp.planning import options

DRAFTERS = {
    "draft-mtp": "--spec-draft-n-max",
    "ngram-simple": "--spec-ngram-simple-size-m",
}
"""Drafting methods, and the option for each one's depth."""


def build(plan: Plan, engine: EngineInfo, cache: str | None = None) -> Command:
    """The command line: ours first, then the operator's verbatim options, which win.

    Options that this build does not accept are omitted. Nothing is compiled: `cache` is not used.
    """
    argv = [engine.executable or "llama-server", "--model", plan.model]
    for name, setting in plan.settings.items():
        if name not in plan.verbatim:
            argv += _to_words(name, setting.value, plan, engine)
    typed = options.read(plan.extra_args, engine.flags, engine.switches)
    secrets, verbatim = options.carry_secrets(typed)
    argv += verbatim
    env = {**{name: str(setting.value) for name, setting in plan.env.items()}, **secrets}
    return Command(tuple(argv), env, (argv[0], *options.redact(argv[1:])))


def _to_words(name: str, value: Any, plan: Plan, engine: EngineInfo) -> list[str]:
    if name == "speculative_config":
        return _drafting(value)
    option = options.option(name)
    if value is None or value is False or (engine.flags and option not in engine.flags):
        return []
    if name == options.CONTEXT and plan.value(options.SHARED) is not True:
        value = value * (count(plan.value("parallel")) or 1)
    return [option] if value is True else [option, str(value)]


def _drafting(value: Any) -> list[str]:
    if not isinstance(value, Mapping):
        return []
    method = str(value["method"])
    depth = str(value["num_speculative_tokens"])
    return ["--spec-type", method, DRAFTERS[method], depth]
