"""Read advice from a failure's own line: a remedy, accepted values, names to search for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from caovand.core.healing.failure import Failure, Finding

# A verb that gives people an instruction.
_VERB = (
    r"(?:[Ii]nstall|[Uu]se|[Ss]et|[Ii]ncrease|[Dd]ecrease|[Rr]educe|[Ll]ower|[Rr]aise|[Dd]isable"
    r"|[Ee]nable|[Rr]un|[Ss]pecify|[Pp]rovide|[Pp]ass|[Uu]pgrade|[Uu]pdate|[Rr]emove|[Uu]nset"
    r"|[Cc]hoose|[Aa]dd|[Ee]nsure|[Mm]ake sure|[Cc]hange|[Aa]djust|[Ss]witch|[Rr]estart"
    r"|[Dd]owngrade|[Rr]ebuild|[Rr]einstall|[Uu]ninstall|[Aa]ccept)\b"
)
# An introduction to such a verb: please, you should, or a purpose ("To use more memory, ...").
_LEAD_IN = (
    r"(?:[Pp]lease|[Tt]ry to|[Cc]onsider to|[Yy]ou (?:can|may|must|need to|should|have to)"
    r"|[Tt]o (?:fix|solve|avoid)(?: this| it)?|(?:[Tt]o|[Ff]or) \w[^.,]{2,60},)"
)
_REMEDY = re.compile(
    r"(?:^|[.!?;:,)\]] {1,3})"  # at the beginning, or after a mark within the line
    rf"((?:{_LEAD_IN} (?:\w{{3,12}} and )?{_VERB}"
    r"|(?:[Pp]lease )?(?:[Tt]ry|[Cc]onsider) \w{3,12}ing\b"
    rf"|(?=[A-Z]){_VERB})"  # or the verb itself, at the beginning of a sentence
    r"(?:[^.!\"]|\.(?=\S)|\"(?!,)){8,240})"  # to the end of the sentence
)
"""A program's own advice in its line, as a sentence or the end of one."""
_ACCEPTED = re.compile(
    r"\b(?:[Oo]nly|(?:[Mm]ust|[Ss]hould) be (?:one )?of|[Cc]hoose from|[Ee]xpected one of"
    r"|(?:[Ss]upported|[Aa]vailable|[Vv]alid) (?:\w{2,20} ){0,3}(?:are|is)):? ?"
    r"(?P<values>[\[{(](?=['\"\w])[^\]})]{3,200}[\]})])"  # a list in brackets
)
"""The values that a program accepts, as it lists them."""
_VALUE = re.compile(r"[^\s,'\"]{1,80}")
_ALIKE = 0.5
"""The similarity, by difflib, from which a name may be the one that was meant."""
_ADVISES = re.compile(
    r"\b(?:[Tt]ry|[Pp]lease|[Cc]onsider|[Ss]et|[Uu]se|[Ii]ncreas\w+|[Dd]ecreas\w+)\b"
)
_REFUSING: frozenset[Failure] = frozenset({"bad-arguments", "backend-unsupported"})
_OPTION = re.compile(
    r"(?<![\w-])--[a-z][\w-]{2,40}"  # --an-option
    r"|`[a-z]{1,30}(?:_[a-z]{1,30}){1,5}`"  # `a_setting`
    r"|\b[a-z]{1,30}(?:_[a-z]{1,30}){1,5}(?= ?[(=] ?\d)"  # a_setting=1, a_setting (1)
)
_SEARCHABLE = re.compile(
    r"\b(?:VLLM|SGLANG|OLLAMA)_[A-Z][A-Z0-9_]{2,60}\b|\blib[\w+-]{1,60}\.so(?:\.\d{1,6}){0,3}\b"
)
"""Variables and libraries, which help to search for any failure."""
_WHATEVER = re.compile(
    r"Try setting VLLM_USE_V1=0\.?|Use `repo_type` argument if needed\.?"
    r"|Please reduce the input size or increase the encoder cache size by setting "
    r"--limit-mm-per-prompt at startup\.?"
)
"""Advice that a program adds whatever the cause is."""
_DOCKER_SUFFIX = ": unknown"
"""The status that Docker adds to a runtime's message."""
MAX_NAMES = 4
OWN_ADVICE = "The line's own advice: "
MIN_WORDS = 3


def line_hints(finding: Finding, advice: Sequence[str]) -> list[str]:
    """Sentences about what the finding's line advises, without what `advice` already contains."""
    text = finding.text.partition(", Traceback (most recent call last)")[0]
    finding = replace(finding, text=_WHATEVER.sub("", text))
    hints = []
    if (remedy := _remedy(finding.text)) and not any(remedy in text for text in advice):
        hints.append(f"{OWN_ADVICE}{remedy}.")
    if choices := finding.captures.get("choices"):
        alike = _alike(finding.captures["choice"], choices)
        hints.append(f"The line lists what is accepted{alike}: {choices}.")
    elif accepted := _ACCEPTED.search(finding.text):
        hints.append(f"The line lists what is accepted: {accepted['values']}.")
    if names := _names(finding, " ".join((*advice, *hints))):
        hints.append(f"The line names {', '.join(names[:MAX_NAMES])}.")
    return hints


def _alike(choice: str, accepted: str) -> str:
    """The accepted values that resemble the refused one, for the sentence that lists them."""
    alike = get_close_matches(choice, _VALUE.findall(accepted), 2, _ALIKE)
    return f" (most similar: {', '.join(alike)})" if alike else ""


def _remedy(text: str) -> str:
    """The line's own advice; "" without one, or if the line is cut off within it."""
    match = _REMEDY.search(text)
    if match is None:
        return ""
    remedy = match[1].partition("', '")[0].strip(" '\"`,;:.").removesuffix(_DOCKER_SUFFIX)
    return "" if match.end() == len(text) and _is_cut(text, remedy) else remedy


def _is_cut(text: str, remedy: str) -> bool:
    """Whether a text that ends with its remedy was shortened: it says so, or the remedy has one or
    two words though the sentences before it end with a full stop."""
    return text.endswith("...") or (". " in text and len(remedy.split()) < MIN_WORDS)


def _names(finding: Finding, advice: str) -> list[str]:
    """Options, variables and libraries in the line, in its order; no options if the advice has
    one of them."""
    options = _options(finding)
    if any(name in advice for name in options):
        options = []
    if finding.text.startswith("#"):  # a debugger's frame, each of which names a library
        return options
    words = (match.group() for match in _SEARCHABLE.finditer(finding.text))
    return list(dict.fromkeys((*options, *(name for name in words if name not in advice))))


def _options(finding: Finding) -> list[str]:
    """The options and settings that a line with a refusal or advice names."""
    if finding.failure not in _REFUSING and not _ADVISES.search(finding.text):
        return []
    options = (match.group().strip("` (") for match in _OPTION.finditer(finding.text))
    return list(dict.fromkeys(options))[:MAX_NAMES]
