"""What is known of one flag of `vllm serve`: a row of the table in `flag_table`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from caovand.core.plan import Plan, Setting
from caovand.core.problem import Problem
from caovand.engines.vllm.planning.draft import Draft
from caovand.engines.vllm.planning.obstacles import Scene
from caovand.engines.vllm.planning.spelling import count, is_left_to_vllm

Rule = Callable[[Draft], Setting | None]
"""From a draft to a setting, None to leave the flag out."""
Obstacle = Callable[[Scene], Iterator[Problem]]
"""What cannot run with the planned value, each with fact and remedy."""

KEEP = "name it in [policy] pinned, and something else gives way"
LEAVE = 'set it to "auto"'
FREE = "stop what else uses the cards"


@dataclass(frozen=True)
class Goal:
    """The key of caovan.toml that a flag is planned for, and what to do where it cannot be had.

    `flags` are verbatim flags that overrule the key, which is the operator's own doing. Without
    `value` the setting has the key's value as it is. `setting` is filled in by the table.
    """

    section: str
    key: str
    remedy: str = LEAVE
    flags: tuple[str, ...] = ()
    value: Callable[[Plan], Any] | None = None
    cuda_only: bool = False
    setting: str = ""

    def planned(self, plan: Plan) -> Any:
        return self.value(plan) if self.value else plan.value(self.setting)


@dataclass(frozen=True)
class Wanted:
    """Which values a verbatim flag may have: what another one lacks, and what to write instead."""

    accepts: Callable[[Any], bool]
    fact: str
    remedy: str


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


COUNT = Wanted(lambda value: count(value) is not None, "no count of one or more", "a whole number")
LENGTH = Wanted(
    lambda value: count(value) is not None or is_left_to_vllm(value),
    "no number of tokens",
    "32768, 32k, 32K or auto",
)
PORT = Wanted(
    lambda value: type(value) is int and 0 < value < 65536,
    "no number from 1 to 65535",
    "such a number",
)
GIB = Wanted(lambda value: _is_number(value) and value >= 0, "no size in GiB", "a number from 0")
SHARE = Wanted(
    lambda value: _is_number(value) and 0 < value <= 1,
    "no share of a card's memory",
    "0.9 or less, above 0",
)
OBJECT = Wanted(lambda value: isinstance(value, Mapping), "no JSON object", '\'{"key": "value"}\'')


@dataclass(frozen=True)
class FlagRow:
    """One flag of vLLM.

    How it is read: `takes` is how many words follow it ("many": all up to the next flag), `short`
    its short name. A flag with a `secret` is shown to nobody: that is the shortest beginning of its
    name that vLLM takes, and `carrier` the variable that brings it to the engine instead.
    `wanted` are the values that are not refused before a start.

    How it is decided: by `rule`, before the cards are sized or, if it is `sized`, afterwards;
    `goal` is the key of caovan.toml that asks for it. What the planner and the forecast calculate
    with is of `type`, also in a remembered plan.

    What stands in its way: `obstacles` find what cannot run with its value; `unforeseen` says what
    it changes of memory where nothing can be forecast with it. `eases` and `hinders` are places in
    advice, from 1: among the flags that the policy sizes if they are left to it, and among the
    verbatim ones that may stand in the way.
    """

    name: str
    takes: Literal["nothing", "one", "many"] = "one"
    short: str = ""
    secret: str = ""
    carrier: str = ""
    wanted: Wanted | None = None
    rule: Rule | None = None
    sized: bool = False
    goal: Goal | None = None
    type: tuple[type, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    unforeseen: str = ""
    eases: int = 0
    hinders: int = 0
