"""A plan: the settings an engine starts with, each with its origin and its reason.

A Plan is pure data. Its engine converts it to argv and environment, and the ladder derives degraded
plans from it. Switching between plans with the same `identity` needs no restart. Settings have
vLLM's argument names, with underscores. An engine with other names translates those that every
engine has: `host`, `port`, `served_model_name`, `max_model_len`, `speculative_config`,
`ssl_certfile`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from caovand.core.healing.failure import Failure
from caovand.core.model_task import ModelTask
from caovand.core.problem import Problem

Origin = Literal["user", "policy", "ladder", "remembered"]


def is_lookup(method: object) -> bool:
    """Whether a drafting method needs no model but looks drafts up in the text, such as
    "ngram-simple"."""
    return isinstance(method, str) and method.startswith(("ngram", "suffix"))


@dataclass(frozen=True)
class Setting:
    """One setting's value, its origin, and the reason in one sentence for people."""

    value: Any
    origin: Origin
    reason: str


@dataclass(frozen=True)
class Taken:
    """One use of a rung; `value` distinguishes it from the rung's other uses.

    `degrades` is False if it costs nothing but time. A `passing` one responds to memory that other
    programs use at the moment, and is decided afresh at the next start.
    """

    rung: str
    value: str = ""
    degrades: bool = True
    passing: bool = False

    def __str__(self) -> str:
        return f"{self.rung} {self.value}".rstrip()


class Misfit(Problem):
    """That a plan does not fit into memory: what is short, and the changes that would make it
    fit."""


class Unplannable(Exception):
    """The configuration has no plan on this machine.

    `failure` shows whether waiting may help: "gpu-absent" ends when a card appears.
    """

    def __init__(self, text: str, failure: Failure = "bad-arguments") -> None:
        self.failure = failure
        super().__init__(text)


@dataclass(frozen=True)
class Plan:
    """Everything that an engine start needs. A setting of None omits its flag or variable."""

    model: str
    settings: Mapping[str, Setting]
    env: Mapping[str, Setting]
    """Variables added to the engine's environment."""
    extra_args: tuple[str, ...] = ()
    """The operator's verbatim flags, which override settings."""
    taken: tuple[Taken, ...] = ()
    """The ladder's steps, oldest first."""
    caveats: tuple[Problem, ...] = ()
    """What people should know before they start it."""
    verbatim: frozenset[str] = frozenset()
    """Settings that `extra_args` contain: present in `settings` only for information, and no rung
    may change them."""
    device: str = ""
    """Target of compiled code, such as "sm75" or "cpu"."""
    engine: str = ""
    """Identifies the environment and its versions."""
    key: str = ""
    """A digest of the API key: a different key makes a different plan."""
    advice: tuple[str, ...] = ()
    """Changes that would make the plan fit."""
    tried: tuple[str, ...] = ()
    """Identities of the plans that the ladder's steps replaced."""
    others_mib: Mapping[int, int] = field(default_factory=dict)
    """Maximum memory that other programs used on each card when a step was taken for lack of
    memory."""
    task: ModelTask = "generate"
    """The model's task, and so the kind of requests it serves."""

    def value(self, name: str) -> Any:
        """The value of a setting; None if it is not set."""
        setting = self.settings.get(name)
        return setting.value if setting else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The caveats in sentences."""
        return tuple(map(str, self.caveats))

    @property
    def values(self) -> dict[str, Any]:
        """All settings' values."""
        return {name: setting.value for name, setting in self.settings.items()}

    @property
    def variables(self) -> dict[str, Any]:
        """The engine's environment variables; None removes one."""
        return {name: setting.value for name, setting in self.env.items()}

    @property
    def rungs(self) -> tuple[str, ...]:
        """The ladder's steps as documents write them: "mtp 2", "eager"."""
        return tuple(map(str, self.taken))

    @property
    def degraded(self) -> bool:
        """Whether a rung was taken that costs more than start-up time."""
        return any(taken.degrades for taken in self.taken)

    @property
    def served_name(self) -> str:
        """The name clients use, the first if there are several."""
        return self.served_names[0]

    @property
    def served_names(self) -> tuple[str, ...]:
        """Every name that clients may use."""
        names = self.value("served_model_name") or self.model
        return tuple(map(str, names)) if isinstance(names, list) else (str(names),)

    @property
    def cards(self) -> tuple[str, ...] | None:
        """Cards visible to the engine, as CUDA names them; None for all."""
        visible = self.env.get("CUDA_VISIBLE_DEVICES")
        return tuple(str(visible.value).split(",")) if visible else None

    @property
    def mtp(self) -> int:
        """Draft depth in tokens, 0 without drafting."""
        speculative = self.value("speculative_config")
        if not isinstance(speculative, Mapping):
            return 0
        depth = speculative.get("num_speculative_tokens", 0)
        return depth if isinstance(depth, int) and depth > 0 else 0

    @property
    def uses_lookup_drafts(self) -> bool:
        """Whether drafts are looked up in the text, so that its topic determines their
        acceptance."""
        speculative = self.value("speculative_config")
        return isinstance(speculative, Mapping) and is_lookup(speculative.get("method"))

    @property
    def policy_drafts(self) -> bool:
        """Whether the policy chose the draft depth, rather than the operator or the ladder."""
        setting = self.settings.get("speculative_config")
        free = "speculative_config" not in self.verbatim
        return free and (setting is None or setting.origin == "policy")

    @cached_property
    def step_time_key(self) -> str:
        """A digest of everything that affects step time, except the draft depth."""
        names = ("tensor_parallel_size", "kv_cache_dtype", "enforce_eager", "quantization", "dtype")
        seen = (
            self.model, self.engine, self.device, self.cards, self.rungs, self.extra_args,
            [self.value(name) for name in names],
        )  # fmt: skip
        return hashlib.sha256(json.dumps(seen, default=str).encode()).hexdigest()[:16]

    def tuned(self, own: Plan) -> Plan | None:
        """This plan with the draft tuner's depth instead of `own`, the policy's.

        None if context or concurrency would shrink, or if the step changed in any other way.
        """
        limits = ("max_model_len", "max_num_seqs")
        fewer = any(_is_less(self.value(name), own.value(name)) for name in limits)
        if fewer or self.step_time_key != own.step_time_key:
            return None
        reason = f"[policy] tune chose depth {self.mtp} instead of {own.mtp}"
        drafts = Setting(self.value("speculative_config"), "policy", reason)
        return replace(self, settings={**self.settings, "speculative_config": drafts})

    @cached_property
    def identity(self) -> str:
        """A digest of everything that the engine would see; the mode's name is not part of it."""
        seen = {
            "model": self.model,
            "engine": self.engine,
            "key": self.key,
            "settings": {k: _without_mode(k, s.value) for k, s in sorted(self.settings.items())},
            "env": {k: s.value for k, s in sorted(self.env.items())},
            "extra_args": self.extra_args,
        }
        text = json.dumps(seen, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_less(value: Any, than: Any) -> bool:
    """Whether a limit is lower; words such as "auto" equal only themselves."""
    if isinstance(value, int) and isinstance(than, int):
        return value < than
    return bool(value != than)


def _without_mode(name: str, value: Any) -> Any:
    if name == "additional_config" and isinstance(value, Mapping):
        return {k: v for k, v in value.items() if k != "caovan_mode"}
    return value
