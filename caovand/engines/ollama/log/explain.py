"""Explain a complete log of Ollama after the fact: phases, figures, the failure, advice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from caovand.core.engine.log import Explanation
from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.hit import MAX_TEXT
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
"""What `ollama --version` prints if the server that runs is another release than the client."""
_OF_RELEASE = ("ollama.model.newer", "ollama.model.architecture")
_CUT = re.compile(r"truncating input prompt.{0,20} limit=(?P<limit>\d+) prompt=(?P<prompt>\d+)")
"""A server that cuts prompts answers, but not what was asked."""

_ABSENT = re.compile(
    r"(?:.{0,60} )?\[GIN\] .{0,40}\| 404 \|.{0,100}\bPOST +\"/"
    r"(?:api/(?:chat|generate|embed\w{0,8}|show)|v1/(?:chat/)?(?:completions|embeddings))\""
)
"""A known path answers 404 for a model that the server does not have."""
_GAVE_UP = "aborting completion request due to client closing the connection"
_OFTEN = 3
"""Times from which it is a client's time-out, and not a person who closes a chat."""


def _find_cause(
    lines: Sequence[str], phase: str = "serving", *, alive: bool = False
) -> Finding | None:
    """The cause of a failure, else a problem that ends no server: an unused card, a truncated
    prompt."""
    versions = _versions(lines)
    if found := find_cause(lines, phase, alive=alive):
        if not versions or found.signature not in _OF_RELEASE:
            return found
        captures = {k: v for k, v in found.captures.items() if k not in ("newer", "architecture")}
        return replace(found, captures={**captures, **versions})
    unused, cut, hinted, integrated = None, None, False, None
    gave_up: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        hinted = hinted or bool(_CARD.search(line[: MAX_TEXT * 4]))
        integrated = integrated or _INTEGRATED.search(line[: MAX_TEXT * 4])
        if unused is None and (none := _NO_CARD.search(line[:MAX_TEXT])):
            text, named = line.strip()[:MAX_TEXT], {k: v for k, v in none.groupdict().items() if v}
            unused = Finding("gpu-absent", text, "http", named, "ollama.cards.unused", number)
        if _GAVE_UP in line[:MAX_TEXT]:
            gave_up.append((number, line.strip()[:MAX_TEXT]))
        if cut is None and (matched := _CUT.search(line[:MAX_TEXT])):
            text, sizes = line.strip()[:MAX_TEXT], matched.groupdict()
            cut = Finding("bad-arguments", text, "serving", sizes, "ollama.context-cut", number)
    if unused is not None and integrated is not None and not hinted:
        named = integrated.groupdict()
        return replace(unused, signature="ollama.cards.integrated", captures=named)
    if hinted and unused is not None:
        return unused
    if cut is None and len(gave_up) >= _OFTEN:
        number, text = gave_up[0]
        times = {"times": str(len(gave_up))}
        return Finding("bad-arguments", text, "serving", times, "ollama.gave-up", number)
    return cut or _absent_model(lines)


def _absent_model(lines: Sequence[str]) -> Finding | None:
    """A request for a model that the server does not have, if it answered nothing else since."""
    for number in range(len(lines), 0, -1):
        line = lines[number - 1][:MAX_TEXT]
        if _ABSENT.match(line):
            text = line.strip()
            return Finding("model-missing", text, "serving", {}, "ollama.model.unknown", number)
        if "POST" in line and "[GIN]" in line:
            return None
    return None


def _versions(lines: Sequence[str]) -> Mapping[str, str]:
    """The releases of server and client, if they differ; empty otherwise."""
    found = {
        name: value
        for line in lines
        if "version is" in line
        for pattern in (_SERVER, _CLIENT)
        if (match := pattern.search(line[:MAX_TEXT]))
        for name, value in match.groupdict().items()
    }
    return found if len(found) == 2 else {}


def _begins(line: str) -> bool:
    return _BEGIN in line[:100] and (line.startswith("time=") or " routes.go:" in line[:40])


def explain(text: str) -> Explanation:
    """Explain the text of a log file; a server on the processor is no failure, but is named."""
    found = _explain(text)
    if found.finding is not None:
        return found
    lines = [line[:MAX_TEXT] for line in lines_of(text)]
    unused = next((n for n, line in enumerate(lines, 1) if _NO_CARD.search(line)), None)
    if unused is None or any(_CARD.search(line) for line in lines):
        return found
    return replace(found, advice=(*found.advice, ON_PROCESSOR.format(line=unused)))


_explain = Explainer(
    begins=_begins,
    at_s=lambda line: take_apart(line).at_s,
    read=read,
    harmless=HARMLESS,
    find_cause=_find_cause,
    advise=advise,
    last="load",
)
