"""Whether sums over several cards are right: what is to be checked, and what was found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from caovand.core.document import number, one_of, read_or_none, record, string
from caovand.core.facts.inventory import EngineInfo, Gpu

NCCL, CUSTOM = "NCCL", "custom all-reduce"
"""What may sum, by the names in findings."""
KEPT = 16
MAX_TEXT = 1000  # characters
Verdict = Literal["right", "wrong", "hung", "unclear"]


@dataclass(frozen=True)
class AllReduce:
    """How a plan sums: over how many cards, with which settings.

    `custom` is Python that binds `custom` to the engine's own all-reduce, or to None if it would
    not be used; "" where the plan has none. `device` and `group` are known to it.
    """

    ranks: int
    custom: str
    settings: Mapping[str, str]


@dataclass(frozen=True)
class AllReduceResult:
    """What a check found: `by` is NCCL or CUSTOM, `text` what was wrong; `at` is Unix time."""

    verdict: Verdict
    at: float
    by: str = ""
    text: str = ""

    @property
    def settled(self) -> bool:
        """Whether there is nothing more to find out; what is wrong may have been put right."""
        return self.verdict in ("right", "unclear")


def key_of(task: AllReduce, gpus: tuple[Gpu, ...], engine: EngineInfo) -> str:
    """What a check holds for: these cards, their driver, this engine and these settings."""
    seen = {
        "task": asdict(task),
        "cards": [(gpu.name, gpu.uuid, gpu.bus, gpu.driver) for gpu in gpus],
        "engine": (engine.version, engine.torch),
    }
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:16]


def to_document(found: Mapping[str, AllReduceResult]) -> dict[str, Any]:
    """The document to keep: the newest KEPT."""
    return {key: asdict(one) for key, one in list(found.items())[-KEPT:]}


def from_document(document: Any) -> dict[str, AllReduceResult]:
    """What was found, by key; without entries that cannot be read."""
    if not isinstance(document, dict):
        return {}
    return {key: one for key, entry in document.items() if (one := read(entry)) is not None}


def read(entry: Any) -> AllReduceResult | None:
    """One entry, or one answer of the check with a time; None if it is no such thing."""
    found = read_or_none(_RESULT, entry)
    return found and replace(found, by=found.by[:MAX_TEXT], text=found.text[:MAX_TEXT])


_RESULT = record(AllReduceResult, {
    "verdict": one_of(get_args(Verdict)), "at": number(), "by": string(), "text": string(),
}, may_have_more=True)  # fmt: skip
