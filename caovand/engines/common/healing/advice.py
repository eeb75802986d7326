"""Advice for people about failures that are the same for every engine.

The settings to change come from the ladder's tables, in its order and words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from caovand.core.healing.answer import suspects
from caovand.core.healing.failure import Failure, Finding
from caovand.core.healing.ladder import REACTIONS
from caovand.core.healing.rung import Healing, Rung
from caovand.core.plan import Plan
from caovand.engines.common.healing.advice_texts import GENERAL, RUNTIMES, SPECIAL, Sentences
from caovand.engines.common.logs.rows.python import UNSURE_ROWS

_ADVISES = re.compile(
    r"\b(?:[Tt]ry|[Pp]lease|[Cc]onsider|[Ss]et|[Uu]se|[Ii]ncreas\w+|[Dd]ecreas\w+)\b"
)
_REFUSING: frozenset[Failure] = frozenset({"bad-arguments", "backend-unsupported"})
_SETTING = re.compile(
    r"(?<![\w-])--[a-z][\w-]{2,40}|`[a-z]{1,30}(?:_[a-z]{1,30}){1,5}`"
    r"|\b[a-z]{1,30}(?:_[a-z]{1,30}){1,5}(?= ?[(=] ?\d)"
)
_NAMED = re.compile(
    r"\b(?:VLLM|SGLANG|OLLAMA)_[A-Z][A-Z0-9_]{2,60}\b|\blib[\w+-]{1,60}\.so(?:\.\d{1,6}){0,3}\b"
)
"""Variables and libraries, which help to search for any failure."""
MAX_NAMED = 4
MIN_WORDS = 3
DRIVEN_BY = "driven_by"
"""The name of a capture: the backend of the card, found in other lines of the log."""
_FOUND = re.compile(
    r".{0,60}?(?:(?P<vulkan>ggml_vulkan: Found [1-9])|found [1-9]\d? (?P<name>ROCm|CUDA|SYCL) dev"
    r"|using device (?P<device>Vulkan|SYCL|ROCm|CUDA)\d)"
)
_RUNTIMES: Mapping[str, re.Pattern[str]] = {
    "Vulkan": re.compile(r"\bvk::|\bggml_vulkan\b|\bVulkan\d?\b|ErrorDeviceLost|DeviceLostError"),
    "SYCL": re.compile(r"\bSYCL\b|\bggml_sycl\b|\b(?:UR_RESULT|PI)_ERROR_|CHECK_TRY_ERROR"),
    "ROCm": re.compile(r"\bROCm\b|\bHIP error|\bhipError|\bHSA_STATUS|by GPU node"),
    "Metal": re.compile(r"kIO\w{2,6}CommandBuffer|\bggml_metal\w"),
}
_DOES = (
    r"(?:[Ii]nstall|[Uu]se|[Ss]et|[Ii]ncrease|[Dd]ecrease|[Rr]educe|[Ll]ower|[Rr]aise|[Dd]isable"
    r"|[Ee]nable|[Rr]un|[Ss]pecify|[Pp]rovide|[Pp]ass|[Uu]pgrade|[Uu]pdate|[Rr]emove|[Uu]nset"
    r"|[Cc]hoose|[Aa]dd|[Ee]nsure|[Mm]ake sure|[Cc]hange|[Aa]djust|[Ss]witch|[Rr]estart"
    r"|[Dd]owngrade|[Rr]ebuild|[Rr]einstall|[Uu]ninstall|[Aa]ccept)\b"
)
_REMEDY = re.compile(
    r"(?:^|[.!?;:,)\]] {1,3})((?:(?:[Pp]lease|[Tt]ry to|[Cc]onsider to|[Yy]ou (?:can|may|must"
    r"|need to|should|have to)|(?:[Tt]o|[Ff]or) \w[^.,]{2,60},) (?:\w{3,12} and )?"
    rf"{_DOES}|(?:[Pp]lease )?(?:[Tt]ry|[Cc]onsider) \w{{3,12}}ing\b|(?=[A-Z]){_DOES})"
    r"(?:[^.!\"]|\.(?=\S)|\"(?!,)){8,240})"
)
"""A program's own advice in its line, as a sentence or the end of one."""
_ACCEPTED = re.compile(
    r"\b(?:[Oo]nly|(?:[Mm]ust|[Ss]hould) be (?:one )?of|[Cc]hoose from|[Ee]xpected one of"
    r"|(?:[Ss]upported|[Aa]vailable|[Vv]alid) (?:\w{2,20} ){0,3}(?:are|is)):? ?"
    r"(?P<values>[\[{(](?=['\"\w])[^\]})]{3,200}[\]})])"
)
"""The values that a program accepts, as it lists them."""
_UNSURE = (
    "That is what the line says; it came from code that was already running, so another start or "
    "another kernel may not need the change."
)


def key_and_flag(option: Callable[[str], str]) -> Callable[[Rung], str]:
    """The key of caovan.toml, and the flag for those who start the engine themselves."""

    def way(rung: Rung) -> str:
        flag = option(rung.touches[0])
        return f"{rung.key}, {flag}" if rung.key else flag

    return way


def adviser(
    special: Sentences, general: Sentences, healing: Healing, way: Callable[[Rung], str]
) -> Callable[[Finding], tuple[str, ...]]:
    """Advise by an engine's tables: what happened, what a person can do, what the ladder would do.

    `special` has sentences by signature, `general` by failure.
    """

    def advise(finding: Finding) -> tuple[str, ...]:
        found = sentences(finding, finding.captures, special, general)
        return (*found, *of_ladder(finding, healing, way))

    return advise


def sentences(
    finding: Finding, known: Mapping[str, Any], special: Sentences, general: Sentences
) -> list[str]:
    """Say what happened and what a person can do, most precise first."""
    name, failure = finding.signature, finding.failure
    runtime = runtime_of(finding)
    found = (
        RUNTIMES.get((name, runtime))
        or special.get(name)
        or SPECIAL.get(name)
        or RUNTIMES.get((failure, runtime))
        or general.get(failure)
        or GENERAL.get(failure, ())
    )
    texts = [text for text in (_fill(sentence, known) for sentence in found) if text]
    if failure == "unknown" and name in UNSURE_ROWS:
        texts.append(_UNSURE)
    if (remedy := _own_remedy(finding)) and not any(remedy in text for text in texts):
        texts.append(f"The line's own advice: {remedy}.")
    if accepted := _ACCEPTED.search(finding.text):
        texts.append(f"The line lists what is accepted: {accepted['values']}.")
    names = _named_options(finding)
    if any(name in text for name in names for text in texts):
        names = []
    frame = finding.text.startswith("#")  # of a debugger, which names a library in each
    matches = () if frame else _NAMED.finditer(finding.text)
    named = dict.fromkeys(match.group() for match in matches)
    names += [name for name in named if name not in names and name not in " ".join(texts)]
    return [*texts, f"The line names {', '.join(names[:MAX_NAMED])}."] if names else texts


def driven_by(lines: Sequence[str]) -> str:
    """The backend of the cards that ggml found, by its log: "" for CUDA or if unknown."""
    names = [found[found.lastgroup or 0] for line in lines if (found := _FOUND.match(line[:200]))]
    names = ["Vulkan" if name.startswith("ggml_vulkan") else name for name in names]
    return names[0] if names and "CUDA" not in names else ""


def runtime_of(finding: Finding) -> str:
    """The backend of the card that failed, by the line or by others of its log: "" for CUDA."""
    for runtime, pattern in _RUNTIMES.items():
        if pattern.search(finding.text):
            return runtime
    return str(finding.captures.get(DRIVEN_BY, ""))


def _own_remedy(finding: Finding) -> str:
    """The line's own advice; "" if it has none."""
    found = _REMEDY.search(finding.text)
    told = found[1].partition("', '")[0].strip(" '\"`,;:") if found else ""
    cut = found is not None and found.end() == len(finding.text) and _is_cut(finding.text, told)
    return "" if cut else told


def _is_cut(text: str, told: str) -> bool:
    """Whether the text ends within its advice: it was shortened, or stops after one or two words
    though its other sentences have a full stop."""
    return text.endswith("...") or (". " in text and len(told.split()) < MIN_WORDS)


def _named_options(finding: Finding) -> list[str]:
    """The options and settings that a line with a refusal or advice names, in its order."""
    if finding.failure not in _REFUSING and not _ADVISES.search(finding.text):
        return []
    found = (match.group().strip("` (") for match in _SETTING.finditer(finding.text))
    return list(dict.fromkeys(found))[:MAX_NAMED]


def of_ladder(
    finding: Finding, healing: Healing, way: Callable[[Rung], str], plan: Plan | None = None
) -> list[str]:
    """The changes that the ladder would make, in order; none if it waits, gives up or only retries.

    `way` names the setting that a person changes for the same effect. With a `plan`, only rungs
    that apply to it.
    """
    rungs = suspects(finding, healing)
    if plan is not None:
        rungs = tuple(rung for rung in rungs if rung.step(plan, finding))
    changes = "; ".join(f"{rung.does} ({way(rung)})" for rung in rungs)
    if not changes:
        return []
    at_once = REACTIONS[finding.failure].kind == "rung"
    return [f"{'What helps' if at_once else 'If it comes back'}, in this order: {changes}."]


def _fill(sentence: str, known: Mapping[str, Any]) -> str:
    try:
        return sentence.format_map(known)
    except KeyError:
        return ""
