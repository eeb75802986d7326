"""The lines of vLLM that are evidence, and the rows that match them.

The rows are in `rows/`: one per text, with the failure it means.

A row matches only lines that can be evidence: an ERROR of vLLM's logger, the last line of a
traceback, or a raw line of a library or of the kernel. INFO and WARNING lines may quote prompts and
never count. `tests/samples/<id>.log` has real lines for each row, and lines it must not match.

Order matters within a line: the first matching row wins (`rows/` says which rows come first).
Between lines, `cause.py` decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.engines.common.logs.rows import host, python
from caovand.engines.common.logs.signature import Signature, first
from caovand.engines.vllm.log.line import VllmLine
from caovand.engines.vllm.log.rows import arguments, cards, ends, memory, model

# In the order in which they are tried; a text of any program last.
SIGNATURES: tuple[Signature, ...] = (
    *memory.ROWS, *cards.ROWS, *arguments.ROWS, *model.ROWS, *ends.ROWS,
    *python.ANY_PROGRAM,
)  # fmt: skip

BY_ID: Mapping[str, Signature] = {row.id: row for row in SIGNATURES}
_FAILING = tuple(s for s in SIGNATURES if s.kind != "benign")
_BENIGN = tuple(s for s in SIGNATURES if s.kind == "benign")

# How a raw line must begin to be evidence: an exception's name, a program's error, a C++ log
# prefix, the kernel. Source lines inside a traceback are indented and never match.
_EXCEPTION = re.compile(
    r"(?:socket\.gaierror|Exception|(?:\w+\.)+(?:_?[A-Z]\w*|\w{1,60}(?:Error|Exception))"
    r"|_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|OutOfResources))"
    r"(?:: |$|\(\)$| at \S{1,200}:\d{1,6}: )"
)
_RAW = re.compile(
    r"(?: {0,2}Value error, |  [^ \[].{0,1000} \[type=[a-z_.]{1,40}, input_value=|  what\(\): "
    r"|\[rank\d+\]|\[E \w{1,40}\.cpp:\d"
    r"|[\w./+ -]{1,60}: (?:fatal |internal compiler )?error\b"
    r"|(?:[\w./+:-]{1,200}: )?fatal error: \S"
    r"|nvcc (?:fatal|error)|ninja: |FAILED: \[code=|FATAL: kernel |Fatal [Pp]ython error:"
    r"|\[autoscaler\] Error: |\(autoscaler\b[^()]{0,40}\) Error: "
    r"|!!!!!!! |malloc\(\)|free\(\)|double free|corrupted "
    r"|munmap_chunk|terminate called|what\(\): |CUDA [Ee]rror|ptxas (?:error|fatal)"
    r"|Failed: Cuda error|Search for `cuda|(?:Exception in w|W)orker VllmWorker"
    r"|The model's max seq len \(|ValueError\(\"type fp8e4nv "
    r"|WorkerProc (?:failed|hit an)|EngineCore (?:failed|encountered a f)"
    r"|error: (?:unrecognized arguments|argument|the following arguments))"
)
_PASSED_ON = re.compile(
    r"(RuntimeError: )Worker failed with error '(.{1,2000}?)', please check"
    r"|(\w{1,40}Error: )Error in model execution(?: \(input dumped to \S{1,300}\))?: (.{1,2000})"
)
# Files that import the compiled parts, and log nothing else.
_IMPORTING = frozenset({"_custom_ops.py", "cuda.py"})
# Waits for Ray's cards, and logs nothing else.
_WAITING = "ray_utils.py"
_SCHEDULING = "scheduler.py"


def is_exception(message: str) -> bool:
    """Whether a message is the last line of a Python traceback."""
    return _EXCEPTION.match(message) is not None


def is_crash(message: str) -> bool:
    """Whether a raw line comes from a library or the kernel, not from Python."""
    return bool(_RAW.match(message) or python.is_raw(message) or host.is_raw(message))


def is_evidence(parts: VllmLine) -> bool:
    """Whether a line of this kind can be evidence of a failure."""
    message = parts.message
    if parts.level in ("ERROR", "CRITICAL"):
        dump = parts.source.endswith("dump_input.py")  # the scheduled batch, prompts included
        return not dump and (message[:2] != "  " or _RAW.match(message) is not None)
    if parts.source.endswith(_WAITING):
        return True
    if parts.source.endswith(_SCHEDULING) and message.startswith("Input prompt ("):
        return parts.level == "WARNING"
    if parts.level:
        # Newer versions log a dead or hung engine core as a WARNING.
        return parts.level == "WARNING" and (
            parts.source.endswith(("core_client.py", "watch_dog.py"))
            or (parts.source in _IMPORTING and message.startswith("Failed to import from vllm._"))
        )
    return is_exception(message) or is_crash(message)


def match(parts: VllmLine) -> tuple[Signature, Mapping[str, str]] | None:
    """The row that matches a line, and the values it reads; None if it is not evidence."""
    return match_text(parts.message) if is_evidence(parts) else None


def match_text(text: str) -> tuple[Signature, Mapping[str, str]] | None:
    """The row that matches a text that is evidence, and the values it reads.

    A text that only passes on another one means the same as the other, if a row knows it.
    """
    passed = _PASSED_ON.match(text)
    match = first(_FAILING, "".join(filter(None, passed.groups()))) if passed else None
    return match or first(_FAILING, text)


def benign(message: str) -> Signature | None:
    """The row for an alarming message that is harmless."""
    match = first(_BENIGN, message)
    return match[0] if match else None
