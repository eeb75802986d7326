"""Turn a plan into the command line and environment of `ollama serve`."""

from __future__ import annotations

from caovand.core.addresses import join_address
from caovand.core.engine.planning import Command
from caovand.core.facts.inventory import EngineInfo
from caovand.core.plan import Plan

HOST, CONTEXT_LENGTH = "OLLAMA_HOST", "OLLAMA_CONTEXT_LENGTH"


def build(plan: Plan, engine: EngineInfo, cache: str | None = None) -> Command:
    """The command: `ollama serve` takes variables, not options. Nothing is compiled: `cache` is not
    used."""
    env = {name: str(value) for name, value in plan.variables.items() if value is not None}
    env[HOST] = join_address(str(plan.value("host")), plan.value("port"))
    env[CONTEXT_LENGTH] = str(plan.value("max_model_len"))
    argv = (engine.executable or "ollama", "serve")
    return Command(argv, env, argv)
