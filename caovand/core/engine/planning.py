"""What the rest of caovan asks of an engine's planner: plans, forecasts, commands, checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from caovand.core.config.schema import Config, Mode
from caovand.core.facts.all_reduce import AllReduce
from caovand.core.facts.checks import CheckResult, DoctorFacts
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import EngineInfo, Gpu, Host, Inventory, ModelCard
from caovand.core.healing.failure import Foreseen
from caovand.core.plan import Plan
from caovand.core.problem import Problem


@dataclass(frozen=True)
class Command:
    """What to run, what to add to its environment, and whether its stack must be unlimited.

    `shown` is the command line as it may be printed, secrets hidden. `links` are pairs of paths:
    before the start the first is to lead to the second, a folder that several plans use.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    shown: tuple[str, ...]
    unlimited_stack: bool = False
    links: tuple[tuple[str, str], ...] = ()


class MakePlan(Protocol):
    """Makes a plan; raises Unplannable.

    `mode` is the one set by `caovanctl mode`, None if the file decides; `environ` what an engine
    inherits from us; `remembered` a degraded plan whose rungs are kept.
    """

    def __call__(
        self,
        config: Config,
        inventory: Inventory,
        *,
        mode: Mode | None = None,
        environ: Mapping[str, str] = MappingProxyType({}),
        remembered: Plan | None = None,
    ) -> Plan: ...


@dataclass(frozen=True)
class Modelled:
    """Modelled throughput in tokens/s over all requests.

    `prefill` counts prompt tokens, `decode` answer tokens; None if not modelled.
    """

    prefill: float | None = None
    decode: float | None = None


class FindAlternative(Protocol):
    """How this engine would serve a model that the chosen one serves at `tokens_s`, 0 if it cannot.

    Empty if it would not, or hardly faster.
    """

    def __call__(
        self, model: ModelCard, gpus: tuple[Gpu, ...], host: Host, tokens_s: float
    ) -> tuple[CheckResult, ...]: ...


class ModelThroughput(Protocol):
    """Models the throughput for prompts of `prompt` tokens, `at_once` requests at a time."""

    def __call__(
        self, plan: Plan, inventory: Inventory, prompt: int, at_once: int, /
    ) -> Modelled: ...


@dataclass(frozen=True, kw_only=True)
class Planning:
    """From configuration and inventory to a running command."""

    make: MakePlan
    conflicts: Callable[[Plan, Inventory], Sequence[Problem]]
    """Settings that cannot run, however much memory there is."""
    forecast: Callable[[Plan, Inventory], MemoryEstimate]
    cards: Callable[[Plan, Inventory], tuple[Gpu, ...]]
    """The cards that a plan uses."""
    context: Callable[[Plan], int | None]
    """A plan's longest request in tokens, None if the engine chooses it."""
    command: Callable[[Plan, EngineInfo, str | None], Command]
    """The command of a plan; the last argument is the folder for compiled code, None for the
    engine's default."""
    overruling: Callable[[Config, Mapping[str, str]], str]
    """The setting that decides the drafting depth instead of a mode, "" for none."""
    checks: Callable[[DoctorFacts], tuple[CheckResult, ...]]
    """The doctor's checks."""
    speed: Callable[[Plan, Inventory], float | None] = lambda plan, inventory: None
    """Tokens a second of one answer after a chat's prompt while nobody else asks, None if that is
    not modelled. It ranks engines; it is not a forecast."""
    modelled: ModelThroughput = lambda plan, inventory, prompt, at_once: Modelled()
    at_once: Callable[[Plan], int | None] = lambda plan: None
    """How many requests are answered at a time, None if that is not planned."""
    alternative: FindAlternative = lambda model, gpus, host, tokens_s: ()
    foreseen: Callable[[Plan, Inventory], Foreseen | None] = lambda plan, inventory: None
    """The failure that a start is known to end in, None if none is known."""
    all_reduce: Callable[[Plan, Inventory], AllReduce | None] = lambda plan, inventory: None
    """How the plan adds up results over several cards, None if it does not."""
    coarse: Callable[[Plan, Inventory], bool] = lambda plan, inventory: True
    """Whether weights, activations or the KV cache have fewer than 16 bits."""
