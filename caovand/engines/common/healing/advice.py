"""Advice for people about a failure: what happened, what they can do, what the ladder would change.

The sentences are in tables, an engine's own before those for every engine; the changes come from
the ladder, in its order and words, so that no sentence can contradict it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from caovand.core.healing.answer import suspects
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import REACTIONS
from caovand.core.healing.rung import Healing, Rung
from caovand.core.plan import Plan
from caovand.engines.common.healing import backends, programs, stages
from caovand.engines.common.healing.advice_texts import GENERAL, SPECIAL, Sentences
from caovand.engines.common.healing.line_hints import OWN_ADVICE, line_hints
from caovand.engines.common.logs.refusals import CLIENT_ROWS
from caovand.engines.common.logs.rows.python import UNSURE_ROWS

_OTHERS = (
    "By PyTorch's own figures other processes use {others} of this card's {card} GiB: nvidia-smi "
    "names them. End them, or let the engine use a smaller share of the card."
)
_AT_ONCE = "What helps, in this order: "
_REPEATED = "If it comes back, in this order: "
_UNSURE = (
    "That is what the line says; it came from code that was already running, so another start or "
    "another kernel may not need the change."
)


def adviser(
    special: Sentences,
    general: Sentences,
    healing: Healing,
    setting: Callable[[Rung], str],
    client: Collection[str] = (),
) -> Callable[[Finding], tuple[str, ...]]:
    """The function that advises on failures of one engine.

    `special` has sentences by signature, `general` by failure. `setting` names what a person
    changes for the same effect as a rung. `client` are rows of the engine's own client, which found
    no server.
    """
    unreached = CLIENT_ROWS.union(client)

    def advise(finding: Finding) -> tuple[str, ...]:
        advice = sentences(finding, finding.captures, special, general)
        if finding.signature in unreached:
            return tuple(advice)
        return (*advice, *ladder_changes(finding, healing, setting))

    return advise


def key_and_flag(option: Callable[[str], str]) -> Callable[[Rung], str]:
    """Name a rung's setting by its key of caovan.toml and, for those who start the engine
    themselves, by its flag."""

    def setting(rung: Rung) -> str:
        flag = option(rung.touches[0])
        return f"{rung.key}, {flag}" if rung.key else flag

    return setting


_VAGUE_ROWS = frozenset({
    "feature.card", "feature.combination", "args.named", "args.value", "raised.value",
    "raised.configuration", "raised.model",
})  # fmt: skip
"""Rows that know only what kind of line it is: the program's own advice is more precise."""


def sentences(
    finding: Finding, known: Mapping[str, Any], special: Sentences, general: Sentences
) -> list[str]:
    """Say what happened and what a person can do, most precise first.

    `known` are the values for the sentences; one that lacks a value is left out.
    """
    signature, failure, backend = (
        stages.key_of(finding),
        finding.failure,
        backends.backend_of(finding),
    )
    templates = (
        backends.ADVICE.get((signature, backend))
        or special.get(signature)
        or SPECIAL.get(signature)
        or backends.ADVICE.get((failure, backend))
        or general.get(failure)
        or GENERAL.get(failure, ())
    )
    known = {**known, **stages.users_of(finding), **programs.tensors_of(finding)}
    texts = [
        text for text in (_fill(template, known) for template in (_OTHERS, *templates)) if text
    ]
    texts = [*programs.first_remedy(finding), *texts]
    if failure == "unknown" and signature in UNSURE_ROWS:
        texts.append(_UNSURE)
    hints = line_hints(finding, texts)
    if signature in _VAGUE_ROWS and hints and hints[0].startswith(OWN_ADVICE):
        return [hints[0], *texts, *hints[1:]]
    return [*texts, *hints]


def ladder_changes(
    finding: Finding, healing: Healing, setting: Callable[[Rung], str], plan: Plan | None = None
) -> list[str]:
    """The changes that the ladder would make, in order, as one sentence at most; none if it waits,
    gives up or only retries.

    With a `plan`, only rungs that apply to it.
    """
    rungs = suspects(finding, healing)
    if plan is not None:
        rungs = tuple(rung for rung in rungs if rung.step(plan, finding))
    changes = "; ".join(f"{rung.does} ({setting(rung)})" for rung in rungs)
    if not changes:
        return []
    precise = bool(healing.precise.get(finding.signature))
    at_once = precise or REACTIONS[finding.failure].kind == "rung"
    return [f"{_AT_ONCE if at_once else _REPEATED}{changes}."]


def without_changes(advice: Sequence[str]) -> tuple[str, ...]:
    """Advice without the ladder's changes, which are one engine's settings."""
    return tuple(text for text in advice if not text.startswith((_AT_ONCE, _REPEATED)))


def _fill(template: str, known: Mapping[str, Any]) -> str:
    try:
        return template.format_map(known)
    except KeyError:
        return ""
