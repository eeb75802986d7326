"""Find the first cause of a failure in Ollama's log.

A model's runner fails before the server reports it: the line that explains the failure comes first.
The server retries a load with fewer layers on the cards, so only lines since the last load count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.hit import Hit, cause, finding, unless_explained
from caovand.engines.common.logs.rows import building, exits, ggml, ggml_families, host
from caovand.engines.common.logs.signature import first
from caovand.engines.ollama.log.line import OllamaLine, apart, take_apart
from caovand.engines.ollama.log.phases import read
from caovand.engines.ollama.log.signatures import BY_ID, HARMLESS, SIGNATURES

MAX_TRACE_LINES = 40
_DRIVER = "ollama.driver"
"""The signature of a server without its cards, which serves on the CPU anyway."""
_REFUSED = "ollama.card.refused"
_DISCOVERY_ROWS = ("ollama.discovery", "ollama.runtime", "ollama.card.old", "driver.old", _REFUSED)
_ANNOUNCING = ("ollama.runner", _DRIVER)
_WARNED = (_DRIVER, _REFUSED, "ollama.client.gone", "ollama.app", "disk.full")
"""Signatures that are evidence at any level but debug."""
_RAW = re.compile(
    r".{0,300}has been blocked by CORS|Ollama(?: API)?\b.{0,100}(?:403 Forbidden|context canceled)"
    r"|.{0,300}404 (?:Client Error: )?Not Found'? for url"
    r"|Ollama(?: call failed|: 50\d, )|The model you are attempting to pull |failed to listen: "
    r"|You need to be signed in to Ollama"
    r"|pull model manifest: "
    r"|(?:pulling manifest {1,3}"
    r"|transferring context {1,3})?(?:couldn't open modelfile '[^']{1,300}'\. )?"
    r"(?:Error|ollama\S{0,40}Error): "
    r"|\{?\"?(?:error\":\"|model requires )|panic: |fatal error: "
    r"|SIG[A-Z]{3,5}: |Exception 0xc0|signal arrived during "
    r"|(?:.{0,80}: )?\"?(?:llama|model)[ -](?:runner|server) (?:process|stopped|has) "
    r"|\"?[\w./-]{1,100}(?::[\w.-]{1,60})?\"? does not support \w"
    r"|do embedding request: |goroutine \d{1,9} (?:gp=|\[)|runtime\.goexit\("
    r"|created by \S|github\.com/ollama/|cuda driver library "
    r"|\d{1,6}\.\d\d\.\d{3}\.\d{3} E |(?:.{0,60} )?['‘]?FROM['’:] |error : "
)
_OLD = re.compile(
    r"\w{1,40}\.go:\d{1,6}: (?:error |signal: killed|warning: gpu |.{0,60}\btoo old\b"
    r"|.{0,400}\bno space left on device)"
    r"|cudaSetDevice err: \d"
)
_CARD_FOUND = re.compile(r"inference compute .{0,100}\blibrary=(?!cpu)\w")
"""At least one library can use a card, even if others cannot."""
_CACHE, _ALLOCATIONS = "ollama.cuda.cache", ("ollama.cuda.oom", "ollama.cuda.weights")
"""The row of a line that says what the failed allocations before it were for, and their rows."""
_NEAR = 2
"""Lines between an allocation that failed and the line that says what it was for."""
_PULLING, _PULL_ENDED = "pulling ", "ollama.pull.ended"
"""What the client prints while it pulls, and the signature whose words mean a pull only then."""
_DATE = re.compile(r"\d{4}/\d\d/\d\d [\d:]{8} ")
"""Prefixes of lines without a level that can be evidence."""


def announces_failure(line: str) -> bool:
    """Whether a line says that a runner, or the driver, failed, with the cause near it."""
    parts = take_apart(line)
    text = _whole(parts)
    return bool(parts.level) and any(BY_ID[name].pattern.search(text) for name in _ANNOUNCING)


def find_cause(
    lines: Sequence[str], phase: str = "serving", *, alive: bool = False
) -> Finding | None:
    """The cause of the engine's failure in its log; None without evidence.

    `phase` is the engine's phase, for logs that do not show it. An engine that is `alive` has
    failed only if it says so.
    """
    hits, announced = _hits(lines, phase)
    if alive and not announced:
        return None
    if (first_cause := cause(hits)) is not None:
        return first_cause
    return finding(hits[0]) if hits else None


def _hits(lines: Sequence[str], phase: str) -> tuple[list[Hit], bool]:
    """The hits since the last load of a model, and whether a runner reported a failure."""
    hits: list[Hit] = []
    shown, announced, served = "", False, phase == "serving"
    pulling = False
    for index, line in ((n, part) for n, message in enumerate(lines) for part in apart(message)):
        mark, _ = read(line)
        if mark is not None and mark.phase is not None:
            loaded = mark.phase == "load" and mark.progress == 1.0
            shown = "serving" if loaded else mark.phase
            served = loaded or (served and mark.phase != "resolve")
            if loaded:
                # It started anyway, if on the cards.
                hits = [hit for hit in hits if hit.row.id in (_DRIVER, _REFUSED)]
                announced = any(hit.row.id == _DRIVER for hit in hits)
            continue
        pulling = pulling or line.startswith(_PULLING)
        parts = take_apart(line)
        message = _whole(parts)
        announced = announced or announces_failure(line)
        if _CARD_FOUND.match(message):
            hits = [hit for hit in hits if hit.row.id not in _DISCOVERY_ROWS]
        if not _is_evidence(parts, line) or first(HARMLESS, message):
            continue
        match = first(SIGNATURES, message)
        if match is not None and match[0].failure == "network" and served:
            continue  # a client's pull, which does not stop the server
        if match is not None and match[0].id == _PULL_ENDED and not pulling:
            continue
        if match is not None and match[0].id == _CACHE:
            while hits and hits[-1].row.id in _ALLOCATIONS and index - hits[-1].index <= _NEAR:
                hits.pop()
        # Of a text printed again and again, the first counts; a log can have a million.
        if match is not None and not (hits and hits[-1].row is match[0]):
            hits.append(Hit(index, message, shown or phase, *match))
    return unless_explained(hits), announced


def _whole(parts: OllamaLine) -> str:
    return f"{parts.message} {parts.rest}" if parts.rest else parts.message


def _is_evidence(parts: OllamaLine, line: str) -> bool:
    """Whether a line can be evidence: an error of the logger, or a raw line of a library or the
    kernel."""
    if parts.level:
        warned = parts.level in ("INFO", "WARN") and any(
            BY_ID[name].pattern.search(parts.message) for name in _WARNED
        )
        return parts.level == "ERROR" or warned or "error=" in parts.rest
    date = _DATE.match(line)
    raw = line[date.end() :] if date else line
    if _RAW.match(line) or _OLD.match(raw) or ggml.is_raw(raw):
        return True
    return any(rows.is_raw(line) for rows in (host, building, exits, ggml_families))
