"""Whether all-reduces over several cards are correct: what to check, and the results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from caovand.core.document import number, one_of, read_or_none, record, string
from caovand.core.facts.inventory import EngineInfo, Gpu

NCCL, CUSTOM = "NCCL", "custom all-reduce"
"""Implementations of all-reduce, by their names in findings."""
MAX_RESULTS = 16
MAX_TEXT = 1000  # characters
AllReduceVerdict = Literal["right", "wrong", "hung", "unclear"]


@dataclass(frozen=True)
class AllReduce:
    """A plan's all-reduces: the number of cards, and the settings.

    `custom` is Python code that binds `custom` to the engine's own all-reduce, or to None if the
    engine would not use it; "" if the plan has none. The code may use `device` and `group`.
    """

    ranks: int
    custom: str
    settings: Mapping[str, str]


@dataclass(frozen=True)
class AllReduceResult:
    """Result of a check: `by` is NCCL or CUSTOM, `text` the error; `at` is Unix time."""

    verdict: AllReduceVerdict
    at: float
    by: str = ""
    text: str = ""

    @property
    def settled(self) -> bool:
        """Whether checking again is pointless; an error may have been fixed since."""
        return self.verdict in ("right", "unclear")


def key_of(task: AllReduce, gpus: tuple[Gpu, ...], engine: EngineInfo) -> str:
    """Key under which a result is valid: these cards, their driver, this engine and these
    settings."""
    seen = {
        "task": asdict(task),
        "cards": [(gpu.name, gpu.uuid, gpu.bus, gpu.driver) for gpu in gpus],
        "engine": (engine.version, engine.torch),
    }
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:16]


def to_document(results: Mapping[str, AllReduceResult]) -> dict[str, Any]:
    """Encode the newest MAX_RESULTS results."""
    return {key: asdict(result) for key, result in list(results.items())[-MAX_RESULTS:]}


def from_document(document: Any) -> dict[str, AllReduceResult]:
    """Decode results by key; unreadable entries are dropped."""
    if not isinstance(document, dict):
        return {}
    return {key: result for key, entry in document.items() if (result := read(entry)) is not None}


def read(entry: Any) -> AllReduceResult | None:
    """Decode one entry, or one answer of the check with a time; None if it is neither."""
    result = read_or_none(_RESULT, entry)
    return result and replace(result, by=result.by[:MAX_TEXT], text=result.text[:MAX_TEXT])


_RESULT = record(AllReduceResult, {
    "verdict": one_of(get_args(AllReduceVerdict)), "at": number(), "by": string(), "text": string(),
}, may_have_more=True)  # fmt: skip
