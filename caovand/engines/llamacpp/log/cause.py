"""Find the first cause of a failure in llama-server's log.

Its loader logs errors innermost first: the line that explains the failure precedes those that pass
it on. A serving server continues after an error of one request, so only a crash counts there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.hit import MAX_TEXT, Hit, cause, finding, unless_explained
from caovand.engines.common.logs.rows import building, exits, ggml, ggml_families, host
from caovand.engines.common.logs.signature import Signature, first
from caovand.engines.llamacpp.log.line import LlamaCppLine, take_apart
from caovand.engines.llamacpp.log.phases import phase_of
from caovand.engines.llamacpp.log.signatures import BY_ID, HARMLESS, SIGNATURES

MAX_TRACE_LINES = 40
_ANNOUNCING = "llama.load"
_CRASHES = frozenset({
    "ggml.assertion", "ggml.exception", "ggml.aborted", "ggml.what", "ggml.parser",
    "llama.cuda.oom", "llama.cuda.illegal", "llama.cuda.launch", "llama.cuda.peer",
    "llama.cuda.other", "llama.ram", "llama.ram.bad-alloc", "gpu.lost", "xid.lost", "xid.app",
    "xid.memory", "xid.firmware", "xid.link",
    "llama.threads", "ggml.split", "ggml.attention", "driver.old", "driver.system",
    "unit.killed", "unit.ended", "signal.ended", "signal.instruction",
})  # fmt: skip
"""Signatures that end a serving engine; its other errors belong to a request."""
_RAW = re.compile(
    r"(?:Error: )?error: |(?:ERROR: )?ggml-cuda was compiled"
    r"|(?:image|audio) input is not|couldn't bind |The server was not compiled"
    r"|\|?(?:common_sampler_init|parse): |Failed to initialize samplers|Assertion failed: "
    r"|Error: llama\.cpp: |error while handling "
    r"|\S{1,100}: --?\w[\w-]{0,40} unknown argument"
    r"|(?:\w{1,40}\.){0,4}\w{1,60}(?:Error|Exception): "
    r"|'https' scheme is not supported"
    r"|\[(?:PYI-)?\d{1,9}(?::ERROR)?\] (?:Could not|Failed to e)|Failed to execute script "
    r"|  Could not load Llama model from path: "
    r"|\[node-llama-cpp\] llama_|.{0,200}\bllama-server <\w{1,30}> exited with status code "
    r"|(?:-{1,3}> \d{1,5})? {0,12}assert self\.(?:model|ctx) is not None"
    r"|.{0,200}\.llamafile\b|.{0,40}Could not load model due to invalid format for "
)
"""Prefixes of lines without a level that can be evidence."""
_CHILD = "llama.router"
"""The message of a server that a router started, and that ends because it cannot reach the
router."""
_RETRIES = "compute buffer allocation failed, retrying"
"""The server continues with smaller buffers: the allocations that failed before are not a
failure."""
_REQUEST = re.compile(
    r"(?:srv|slot|que) {1,6}(?:params_from|launch_slot|update_slots"
    r"|log_server_r(?!.{0,30}/health)|get_availabl|slot)"
    r"|slot \d{1,4} (?:: |is )"
)
"""A server's lines about requests: an excerpt may begin after its start."""
_NO_MEMORY = (
    "llama.cuda.oom", "llama.cuda.weights", "llama.cuda.compute", "llama.ram", "llama.ram.buffer",
)  # fmt: skip
_CACHE_BUFFERS = ("buffer for kv cache", "buffer for rs cache")
"""Words of a line after failed allocations that say what they were for."""
_CONTEXT = re.compile(r"\bn_ctx {0,12}= {1,12}(?P<context>\d{1,12})$")
"""The length of the context that the cache is made for."""
_STOPPED = "cleaning up before exit"


def announces_failure(line: str) -> bool:
    """Whether a line says that the start failed: the cause is near it."""
    parts = take_apart(line)
    return parts.level == "E" and bool(BY_ID[_ANNOUNCING].pattern.search(parts.message))


def find_cause(
    lines: Sequence[str], phase: str = "serving", *, alive: bool = False
) -> Finding | None:
    """The cause of the engine's failure in its log; None without evidence.

    `phase` is the engine's phase, for logs that do not show it. An engine that is `alive` has
    failed only if it says so.
    """
    hits, stopped = _hits(lines, phase)
    if alive and not any(hit.row.id == _ANNOUNCING for hit in hits):
        return None
    if (first_cause := cause(hits)) is not None:
        return first_cause
    symptoms = [hit for hit in hits if hit.row.kind in ("consequence", "wrapper")]
    if not symptoms or stopped:
        return None
    ends = [hit for hit in symptoms if hit.row.kind == "consequence"]
    return finding((ends or symptoms)[0])


def _hits(lines: Sequence[str], phase: str) -> tuple[list[Hit], bool]:
    hits: list[Hit] = []
    shown, stopped = "", False
    context: dict[str, str] = {}
    for index, line in enumerate(lines):
        mark = phase_of(line) if shown != "serving" else None
        if _RETRIES in line:
            hits = []
        if mark is not None and mark.phase is not None:
            shown = "serving" if mark.progress == 1.0 else mark.phase
            if shown == "serving":
                hits = []  # it started anyway
            continue
        if not shown and not hits and _REQUEST.match(line):
            shown = "serving"
        parts = take_apart(line)
        stopped = stopped or _STOPPED in parts.message[:MAX_TEXT]
        here = shown or phase
        if made := _CONTEXT.search(parts.message[:MAX_TEXT]):
            context = made.groupdict()
        if not _is_evidence(parts, line) or first(HARMLESS, parts.message):
            continue
        text = f"{parts.source}: {parts.message}" if parts.source else parts.message
        found = first(SIGNATURES, text)
        if found is None or (here == "serving" and not _is_crash(parts, found[0])):
            continue
        if hits and hits[-1].row.id in _NO_MEMORY and _names_cache(text):
            while len(hits) > 1 and hits[-2].row.id in _NO_MEMORY:
                hits.pop()
            text = f"{hits[-1].text}: {parts.message}"
            row, captures = first(SIGNATURES, text) or found
            hits[-1] = Hit(hits[-1].index, text, here, row, {**captures, **context})
            continue
        hits.append(Hit(index, parts.message, here, *found))
    return unless_explained(hits), stopped


def _names_cache(text: str) -> bool:
    return any(words in text for words in _CACHE_BUFFERS)


def _is_crash(parts: LlamaCppLine, row: Signature) -> bool:
    """Whether a line ends a serving server: the server's own lines may quote a request."""
    return row.id == _CHILD or (row.id in _CRASHES and not parts.component)


def _is_evidence(parts: LlamaCppLine, line: str) -> bool:
    """Whether a line can be evidence: an error of the logger, or a raw line of a library or the
    kernel."""
    if parts.level:
        return parts.level == "E"
    beginnings = (ggml.is_raw, host.is_raw, building.is_raw, exits.is_raw, ggml_families.is_raw)
    return bool(_RAW.match(line)) or any(begins(line) for begins in beginnings)
