"""`caovanctl plan --engine all`: compare each engine's plan for the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from caovand.adapters.engine.choice import chosen_engine
from caovand.cli.common.errors import CommandError
from caovand.cli.common.planned import PlannedEngine
from caovand.core.config.schema import Config
from caovand.core.engine.record import Engine
from caovand.core.facts.forecast import MemoryEstimate
from caovand.engines import registry

ALL_KINDS = "all"
KINDS = (*registry.MODULES, ALL_KINDS)
NOT_TAKEN = ("others", "free")
"""Parts of a forecast that are not the engine's memory."""


@dataclass(frozen=True)
class EngineCandidate:
    """A kind of engine with its plan, or the reason why there is none."""

    engine: Engine
    planned: PlannedEngine | None
    problem: str = ""

    @property
    def memory(self) -> MemoryEstimate | None:
        """Its plan's memory forecast."""
        return self.planned.memory if self.planned else None

    @property
    def speed(self) -> float | None:
        """Modelled decode speed of a single request, in tokens/s."""
        if self.planned is None:
            return None
        return self.engine.planning.speed(self.planned.plan, self.planned.inventory)

    @property
    def context(self) -> int | None:
        """The engine's maximum request length in tokens."""
        return self.engine.planning.context(self.planned.plan) if self.planned else None


def with_engine(config: Config, kind: str) -> Config:
    """The configuration for another kind of engine, without keys specific to its own kind."""
    if kind == chosen_engine(config).name:
        return config
    engine = replace(config.engine, kind=kind, python=None, extra_args=(), env=())
    return replace(config, engine=engine)


def candidates(
    config: Config, plan: Callable[[Config], PlannedEngine]
) -> Iterator[EngineCandidate]:
    """Every kind of engine, starting with the chosen one."""
    chosen = chosen_engine(config).name
    for kind in sorted(registry.MODULES, key=lambda kind: kind != chosen):
        engine = registry.engine_of(kind)
        try:
            yield EngineCandidate(engine, plan(with_engine(config, kind)))
        except CommandError as problem:
            yield EngineCandidate(engine, None, str(problem))


def why_chosen(config: Config, engine: Engine) -> str:
    """Why this engine was chosen."""
    if config.engine.kind is not None:
        return "[engine] kind names it"
    if engine.name == registry.DEFAULT:
        return "no other engine prefers this model's files"
    return "this engine prefers the model's files"


def as_json(candidates: list[EngineCandidate], config: Config) -> dict[str, Any]:
    """The document that --json prints."""
    return {
        "chosen": candidates[0].engine.name,
        "why": why_chosen(config, candidates[0].engine),
        "engines": [
            {
                "name": candidate.engine.name,
                "tokens_s": candidate.speed,
                "context": candidate.context,
                "problem": candidate.problem or None,
                "plan": candidate.planned.as_json() if candidate.planned else None,
            }
            for candidate in candidates
        ],
    }


def show(candidates: list[EngineCandidate], config: Config, console: Console) -> None:
    """Print a table for people, and why the first engine was chosen."""
    table = Table("engine", "fits", "context", "tokens/s", "GiB a card", box=None, pad_edge=False)
    for candidate in candidates:
        memory = candidate.memory
        fits = "-" if memory is None or memory.fits is None else "yes" if memory.fits else "no"
        parts = memory.parts if memory and candidate.planned and candidate.planned.cards else ()
        taken = sum(size for name, size in parts if name not in NOT_TAKEN)
        table.add_row(
            candidate.engine.title,
            fits,
            "-" if candidate.context is None else f"{candidate.context:,}",
            "-" if candidate.speed is None else f"{candidate.speed:,.0f}",
            f"{taken / 1024:.1f}" if parts else "-",
        )
    console.print(table)
    for candidate in candidates:
        text = candidate.problem or _lack(candidate)
        if text:
            console.print(Text(f"{candidate.engine.title}: {text}", style="yellow"))
    first = candidates[0].engine
    chosen = (
        "would be chosen, but cannot serve this model here"
        if candidates[0].problem
        else "is chosen"
    )
    reason = why_chosen(config, first)
    console.print(Text(f"{first.title} {chosen}: {reason}; [engine] kind chooses another"))
    console.print(Text("tokens/s are estimates for one request at a time"))


def _lack(candidate: EngineCandidate) -> str:
    memory = candidate.memory
    if memory is None or memory.fits is not False:
        return ""
    return memory.lack or "; ".join(map(str, memory.conflicts))
