"""An engine's planner as the rest of caovan calls it: plans, forecasts, commands, checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from caovand.core.config.schema import Config, Mode
from caovand.core.doctor.facts import DoctorFacts
from caovand.core.facts.all_reduce import AllReduce
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import EngineInfo, Gpu, Host, Inventory, ModelCard
from caovand.core.healing.failure import Foreseen
from caovand.core.plan import Plan
from caovand.core.problem import Problem


@dataclass(frozen=True)
class Command:
    """The command to run, additions to its environment, and whether its stack must be unlimited.

    `shown` is the command line for printing, with secrets hidden. `links` are pairs of paths:
    before the start, each first path must link to the second, a folder that several plans share.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    shown: tuple[str, ...]
    unlimited_stack: bool = False
    links: tuple[tuple[str, str], ...] = ()


class MakePlan(Protocol):
    """Makes a plan; raises Unplannable.

    `mode` is the one set by `caovanctl mode`; None leaves it to the configuration file. `environ`
    is the environment that the engine inherits from the daemon, `remembered` a degraded plan whose
    rungs are kept.
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
    """Describe how this engine would serve a model that the chosen one serves at `tokens_s` (0: not
    at all). Nothing if this engine cannot serve the model, or would hardly be faster.
    """

    def __call__(
        self, model: ModelCard, gpus: tuple[Gpu, ...], host: Host, tokens_s: float
    ) -> tuple[CheckResult, ...]: ...


class ModelThroughput(Protocol):
    """Models throughput for prompts of `prompt` tokens with `at_once` concurrent requests."""

    def __call__(
        self, plan: Plan, inventory: Inventory, prompt: int, at_once: int, /
    ) -> Modelled: ...


@dataclass(frozen=True, kw_only=True)
class Planning:
    """From configuration and inventory to a running command."""

    make: MakePlan
    conflicts: Callable[[Plan, Inventory], Sequence[Problem]]
    """Settings that cannot work, however much memory there is."""
    forecast: Callable[[Plan, Inventory], MemoryEstimate]
    cards: Callable[[Plan, Inventory], tuple[Gpu, ...]]
    """The cards that a plan uses."""
    context: Callable[[Plan], int | None]
    """A plan's maximum request length in tokens; None if the engine chooses it."""
    command: Callable[[Plan, EngineInfo, str | None], Command]
    """A plan's command; the last argument is the folder for compiled code, None for the engine's
    default."""
    overruling: Callable[[Config, Mapping[str, str]], str]
    """The setting that overrides a mode's draft depth; "" without one."""
    checks: Callable[[DoctorFacts], tuple[CheckResult, ...]]
    """The doctor's checks."""
    speed: Callable[[Plan, Inventory], float | None] = lambda plan, inventory: None
    """Tokens per second of a single request after a chat-sized prompt; None if not modelled. It
    ranks engines; it is not a forecast."""
    modelled: ModelThroughput = lambda plan, inventory, prompt, at_once: Modelled()
    at_once: Callable[[Plan], int | None] = lambda plan: None
    """Maximum number of concurrent requests; None if not planned."""
    alternative: FindAlternative = lambda model, gpus, host, tokens_s: ()
    foreseen: Callable[[Plan, Inventory], Foreseen | None] = lambda plan, inventory: None
    """The failure that is certain to end this start; None if none is."""
    longest: Callable[[Config, Inventory], int] = lambda config, inventory: 0
    """The longest context that fits with any settings that are left to the planner, where the
    configured one does not; 0 if there is none, or if the planner does not know."""
    all_reduce: Callable[[Plan, Inventory], AllReduce | None] = lambda plan, inventory: None
    """The plan's all-reduce over several cards; None without one."""
    is_quantised: Callable[[Plan, Inventory], bool] = lambda plan, inventory: True
    """Whether weights, activations or the KV cache use fewer than 16 bits."""
