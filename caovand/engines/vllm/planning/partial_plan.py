"""A plan in the making, which the policy's rules read, and a finished one, which obstacles read."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from caovand.core.config.schema import Config, Mode
from caovand.core.facts.inventory import EngineInfo, Gpu, Host, Inventory, ModelCard
from caovand.core.model_task import ModelTask
from caovand.core.plan import Origin, Plan, Setting
from caovand.engines.vllm.flags import command_line
from caovand.engines.vllm.flags.spelling import (
    DRAFTER,
    INT8,
    LM_HEAD,
    MARLIN_INPUT,
    count,
    whole_number,
)
from caovand.engines.vllm.machine.capabilities import TURING, needs_whole_tiles, oldest_without
from caovand.engines.vllm.machine.ranks import PIPELINE, Split, serving_cards
from caovand.engines.vllm.sizing.space import Choice, Space


@dataclass(frozen=True)
class Trial:
    """Values that are tried in place of the rules' own choices; each default leaves one to them.

    `split` is over the plan's cards, `depth` the drafting depth, `cache` the cache's type. `half`
    tries float16 where the rules prefer float32; without `prefixes` nothing is kept of earlier
    prompts. `int8_head` rounds the lm_head.
    """

    split: Split | None = None
    depth: int | None = None
    cache: str = ""
    half: bool = False
    prefixes: bool = True
    int8_head: bool = False


RULES_ALONE = Trial()


@dataclass(frozen=True)
class PartialPlan:
    """A plan in the making: the facts, and the settings decided so far.

    `verbatim` are the values of the operator's verbatim flags, `gpus` the cards that are used here,
    `cards` the cards of all nodes.

    `trial` is what the search tries instead of the rules' own choices. `choice` is set once the
    cards are sized, and `space` if it is the best of one; `why_unmodelled` says why its context is
    unknown, for example because the weights on a card are. `dropped_variables` names variables that
    the ladder unset. `plugins` names those that vLLM may load; None is all. `task` is the model's
    task by the verbatim flags.
    """

    config: Config
    inventory: Inventory
    verbatim: Mapping[str, Any]
    gpus: tuple[Gpu, ...]
    mode: Mode
    mode_setting: Setting
    auto_spec: str | None
    plugins: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    trial: Trial = RULES_ALONE
    space: Space | None = None
    choice: Choice | None = None
    why_unmodelled: str = ""
    weights_unknown: bool = False
    dropped_variables: frozenset[str] = frozenset()
    task: ModelTask = "generate"

    @property
    def engine(self) -> EngineInfo:
        return self.inventory.engine

    @property
    def host(self) -> Host:
        return self.inventory.host

    @property
    def model(self) -> ModelCard:
        return self.inventory.model

    @property
    def generates(self) -> bool:
        """Whether clients can request completions and chats."""
        return self.task == "generate"

    @property
    def cuda(self) -> bool:
        return self.engine.build == "cuda"

    @property
    def values(self) -> dict[str, Any]:
        """The settings decided so far, the operator's verbatim flags included."""
        return {**{name: setting.value for name, setting in self.settings.items()}, **self.verbatim}

    @property
    def cards(self) -> tuple[Gpu, ...]:
        """The cards of all nodes, by rank; the split must be decided."""
        return tuple(gpu for _, gpu in serving_cards(self.gpus, self.inventory.others, self.values))

    @property
    def turing(self) -> bool:
        """Whether a card is a Turing, for which few current kernels are written."""
        return any(gpu.compute_capability == TURING for gpu in self.cards)

    @property
    def whole_tiles(self) -> bool:
        """Whether the weights must be whole tiles of Marlin on every rank."""
        cards = (*self.gpus, *(gpu for node in self.inventory.others for gpu in node.gpus))
        asked = str(self.values.get("quantization") or "")
        return self.cuda and needs_whole_tiles(self.model, asked, cards, self.engine)

    @property
    def memory_variables(self) -> dict[str, str]:
        """The variables that affect memory, before the environment is decided."""
        policies = self.config.policy
        head = INT8 if self.trial.int8_head else policies.lm_head
        exact = self.mode == "stable" or self.steers_plugin
        layer = None if exact else INT8  # of the drafter, if the head is int8 too
        goals = {MARLIN_INPUT: policies.activations, LM_HEAD: head, DRAFTER: layer}
        asked = {
            name: INT8
            for name, goal in goals.items()
            if goal == INT8 and name not in self.dropped_variables
        }
        off = {} if self.config.engine.plugin else {"CAOVAN_KERNELS": "off"}
        return {**asked, **dict(self.config.engine.env), **off}

    @property
    def steers_plugin(self) -> bool:
        """Whether a verbatim --additional-config has switches of caovan's plugin."""
        config = self.verbatim.get("additional_config")
        return isinstance(config, Mapping) and any(
            str(name).startswith("caovan") for name in config
        )

    def value(self, name: str) -> Any:
        """The value of an earlier setting; None if there is none."""
        setting = self.settings.get(name)
        return setting.value if setting else None

    def count(self, name: str) -> int:
        """An earlier setting as a count of at least one, even if a verbatim flag is not one."""
        return max(whole_number(self.value(name)) or 1, 1)

    @property
    def mtp(self) -> int:
        """The drafting depth, 0 if nothing is drafted or a verbatim flag overrules it."""
        config = self.value("speculative_config")
        depth = config.get("num_speculative_tokens") if isinstance(config, Mapping) else 0
        return max(whole_number(depth) or 0, 0)

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return self.count(PIPELINE)

    @property
    def warms_up_stages(self) -> bool:
        """Whether only a warm-up makes the buffers of later stages, which `--enforce-eager` omits.

        An operator's own compile flags stand.
        """
        return not self.cuda and self.stages > 1 and "enforce_eager" not in self.verbatim

    def pinned(self, name: str) -> bool:
        return self.config.policy.strict or name in self.config.policy.pinned


@dataclass(frozen=True)
class PlanOnCards:
    """A plan on its cards."""

    plan: Plan
    inventory: Inventory
    gpus: tuple[Gpu, ...]

    @property
    def model(self) -> ModelCard:
        return self.inventory.model

    def count(self, name: str) -> int | None:
        """The setting as a count of one or more; None for what leaves the choice to vLLM."""
        return count(self.plan.value(name))

    @property
    def quantization(self) -> str:
        """The weights' quantisation, in the checkpoint or at load."""
        return str(self.model.quantization or self.plan.value("quantization") or "")

    @property
    def whole_tiles(self) -> bool:
        """Whether the weights must be whole tiles of Marlin on every rank."""
        asked, engine = str(self.plan.value("quantization") or ""), self.inventory.engine
        return needs_whole_tiles(self.model, asked, self.gpus, engine)

    def first(self, below: tuple[int, int]) -> str:
        """Description of the first card older than this; empty if there is none."""
        return oldest_without(self.gpus, below)


def chosen_by_policy(plan: Plan | PartialPlan, name: str) -> Any:
    """The value of a setting that the policy chose; None if nothing or somebody else set it."""
    setting = plan.settings.get(name)
    return setting.value if setting and setting.origin == "policy" else None


def offloaded_gib(plan: Plan | PartialPlan) -> float:
    """GiB of each card's weights that the plan keeps in host memory."""
    offload = plan.value("cpu_offload_gb")
    return float(offload) if isinstance(offload, (int, float)) else 0.0


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, or all known names."""
    listed = sorted(known)
    close = difflib.get_close_matches(name, listed, n=1, cutoff=0.5)
    return f'"{close[0]}"' if close else f"one of {', '.join(listed)}"


def policy(value: Any, reason: str) -> Setting:
    return Setting(value, "policy", reason)


def user(value: Any, reason: str, origin: Origin = "user") -> Setting:
    return Setting(value, origin, reason)


SettingRule = Callable[[PartialPlan], Setting | None]
"""From a partial plan to a setting; None omits the flag."""


def decide(rows: tuple[tuple[str, SettingRule], ...], partial: PartialPlan) -> PartialPlan:
    """The plan extended by these rules' decisions; verbatim flags stand."""
    for name, rule in rows:
        setting = verbatim_setting(name, partial.verbatim) or rule(partial)
        if setting is not None:
            partial = replace(partial, settings={**partial.settings, name: setting})
    return partial


def verbatim_setting(name: str, verbatim: Mapping[str, Any]) -> Setting | None:
    """The operator's flag as a setting; None if there is none."""
    if name not in verbatim or name == "additional_config":
        return None
    return user(command_line.shown_value(name, verbatim[name]), "passed verbatim")
