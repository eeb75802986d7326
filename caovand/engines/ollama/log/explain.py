"""Explain a complete log of Ollama after the fact: phases, values, the failure, advice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from caovand.core.engine.log import Explanation
from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.hit import MAX_TEXT, line_finding
from caovand.engines.common.logs.rows import network
from caovand.engines.common.logs.signature import first
from caovand.engines.common.logs.whole_log import Explainer, lines_of
from caovand.engines.ollama.healing.advice import advise
from caovand.engines.ollama.healing.advice_cards import ON_PROCESSOR
from caovand.engines.ollama.log.cause import find_cause
from caovand.engines.ollama.log.line import take_apart
from caovand.engines.ollama.log.phases import read
from caovand.engines.ollama.log.signatures import HARMLESS

_BEGIN = "server config"
"""In the first line of a log; releases before 0.6.7 write that line in another form."""


_NO_CARD = re.compile(
    r"no (?:compatible )?GPUs? (?:were discovered|detected)|inference compute.{0,80} library=cpu\b"
    r"|vram-based default context.{0,20} total_vram=\"0 B\"|\b(?P<runners>runners=\[cpu\])"
)
_INTEGRATED = re.compile(
    r"dropping integrated GPU\b.{0,300}? description=\"?(?P<name>[^\"]{1,100})"
)
"""The only card that was found, if none is left."""
_CARD = re.compile(
    r"(?:CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HSA_OVERRIDE_GFX_VERSION):"
    r"[\w.-]|Discovered GPU libraries: \[[^\]]|\bamdgpu\b|init failure"
    r"|cudaSetDevice err|(?:Nvidia|NVIDIA|Radeon|Intel) GPU detect"
    r"|inference compute.{0,80} library=(?!cpu)\w|Device \d{1,3}: "
)
"""Signs that the machine has a card, or that someone expects one."""


_SERVER = re.compile(r"\bollama version is (?P<server>\d[\w.+-]{0,40})")
_CLIENT = re.compile(r"\bclient version is (?P<client>\d[\w.+-]{0,40})")
"""Lines of `ollama --version` if the running server is of another release than the client."""
_RELEASE_ROWS = ("ollama.model.newer", "ollama.model.architecture")
_CUT = re.compile(r"truncating input prompt.{0,20} limit=(?P<limit>\d+) prompt=(?P<prompt>\d+)")
"""A server that truncates prompts answers, but not the whole question."""

_ABSENT = re.compile(
    r"(?:.{0,60} )?\[GIN\] .{0,40}\| 404 \|.{0,100}\bPOST +\"/"
    r"(?:api/(?:chat|generate|embed\w{0,8}|show)|v1/(?:chat/)?(?:completions|embeddings))\""
)
"""A known path answers 404 for a model that the server does not have."""
_FORBIDDEN = re.compile(
    r"(?:.{0,60} )?\[GIN\] .{0,40}\| 403 \|.{0,100}\b[A-Z]{3,7} +\"/(?:api|v1)/"
)
"""The server's check of origins and hosts answers 403; nothing else of a local model does."""
_TIMED_OUT = re.compile(
    r"\[GIN\] .{0,40}\| 500 \| {1,12}(?P<time>(?:\d{1,2}h)?\d{1,2}m0s) \|.{0,100}\bPOST +\"/"
    r"(?:api/(?:chat|generate)|v1/(?:chat/completions|messages))"
)
_QUESTION = re.compile(r"\[GIN\] .{0,120}\bPOST +\"/(?:api/(?:chat|generate|embed)|v1/)")
_ASKED = re.compile(r".{0,120}\bmsg=\"request failed: (?:Get|Head|Put) ")
_GAVE_UP = "aborting completion request due to client closing the connection"
_MIN_TIMES = 3
"""Times from which it is a client's time-out, and not a person who closes a chat."""


def _find_cause(
    lines: Sequence[str], phase: str = "serving", *, alive: bool = False
) -> Finding | None:
    """The cause of a failure, else a problem that ends no server: an unused card, a truncated
    prompt."""
    versions = _versions(lines)
    if fatal := find_cause(lines, phase, alive=alive):
        if not versions or fatal.signature not in _RELEASE_ROWS:
            return fatal
        captures = {k: v for k, v in fatal.captures.items() if k not in ("newer", "architecture")}
        return replace(fatal, captures={**captures, **versions})
    unused, cut, hinted, integrated = None, None, False, None
    gave_up: list[int] = []
    for number, line in enumerate(lines, 1):
        hinted = hinted or bool(_CARD.search(line[: MAX_TEXT * 4]))
        integrated = integrated or _INTEGRATED.search(line[: MAX_TEXT * 4])
        if unused is None and (none := _NO_CARD.search(line[:MAX_TEXT])):
            named = {name: text for name, text in none.groupdict().items() if text}
            unused = line_finding("gpu-absent", line, number, "http", "ollama.cards.unused", named)
        if _GAVE_UP in line[:MAX_TEXT]:
            gave_up.append(number)
        if cut is None and (matched := _CUT.search(line[:MAX_TEXT])):
            cut = line_finding(
                "bad-arguments", line, number, "serving", "ollama.context-cut", matched.groupdict()
            )
    if unused is not None and integrated is not None and not hinted:
        named = integrated.groupdict()
        return replace(unused, signature="ollama.cards.integrated", captures=named)
    if hinted and unused is not None:
        return unused
    if cut is None and len(gave_up) >= _MIN_TIMES:
        number, times = gave_up[0], {"times": str(len(gave_up))}
        line = lines[number - 1]
        return line_finding("bad-arguments", line, number, "serving", "ollama.gave-up", times)
    refused = _absent_model(lines) or _forbidden(lines)
    return cut or refused or _failed_pull(lines) or _timed_out(lines)


def _forbidden(lines: Sequence[str]) -> Finding | None:
    """The last request, if the server refused its origin."""
    for number in range(len(lines), 0, -1):
        line = lines[number - 1][:MAX_TEXT]
        if _FORBIDDEN.match(line):
            return line_finding("access-denied", line, number, "serving", "ollama.origin")
        if "[GIN]" in line:
            return None
    return None


def _timed_out(lines: Sequence[str]) -> Finding | None:
    """A request that ended with 500 after whole minutes, as the client's time-out ends it."""
    for number, line in enumerate(lines, 1):
        if ended := _TIMED_OUT.search(line[:MAX_TEXT]):
            named = ended.groupdict()
            return line_finding("bad-arguments", line, number, "serving", "ollama.timed-out", named)
    return None


def _failed_pull(lines: Sequence[str]) -> Finding | None:
    """A server's last attempt to reach the registry, if it failed and nothing was asked since."""
    for number in range(len(lines), 0, -1):
        line = lines[number - 1][:MAX_TEXT]
        if _QUESTION.search(line):
            return None
        if not _ASKED.match(line):
            continue
        found = first(network.ROWS, take_apart(line).message)
        return found and line_finding("network", line, number, "serving", found[0].id, found[1])
    return None


def _absent_model(lines: Sequence[str]) -> Finding | None:
    """A request for a model that the server does not have, if it answered nothing else since."""
    for number in range(len(lines), 0, -1):
        line = lines[number - 1][:MAX_TEXT]
        if _ABSENT.match(line):
            return line_finding("model-missing", line, number, "serving", "ollama.model.unknown")
        if "POST" in line and "[GIN]" in line:
            return None
    return None


def _versions(lines: Sequence[str]) -> Mapping[str, str]:
    """The releases of server and client, if they differ; empty otherwise."""
    versions = {
        name: value
        for line in lines
        if "version is" in line
        for pattern in (_SERVER, _CLIENT)
        if (match := pattern.search(line[:MAX_TEXT]))
        for name, value in match.groupdict().items()
    }
    return versions if len(versions) == 2 else {}


def _begins(line: str) -> bool:
    return _BEGIN in line[:100] and (line.startswith("time=") or " routes.go:" in line[:40])


def explain(text: str) -> Explanation:
    """Explain the text of a log file; a server on the CPU is no failure, but is reported."""
    explanation = _explain(text)
    if explanation.engine_version is None and (client := _CLIENT.search(text)):
        explanation = replace(explanation, engine_version=f"{client['client']} (client)")
    if explanation.finding is not None:
        return explanation
    lines = [line[:MAX_TEXT] for line in lines_of(text)]
    unused = next((n for n, line in enumerate(lines, 1) if _NO_CARD.search(line)), None)
    if unused is None or any(_CARD.search(line) for line in lines):
        return explanation
    return replace(explanation, advice=(*explanation.advice, ON_PROCESSOR.format(line=unused)))


_explain = Explainer(
    begins=_begins,
    at_s=lambda line: take_apart(line).at_s,
    read=read,
    harmless=HARMLESS,
    find_cause=_find_cause,
    advise=advise,
    last="load",
)
