"""Find the first cause of a failure in SGLang's log.

A scheduler prints its traceback, and its parent then ends all processes: the exception explains it,
later lines do not. With several cards each rank prints its own; the first counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.callers import IMPORTS, MISMATCH, caller, importer
from caovand.engines.common.logs.compiled import REASON, SOURCE, kernel_before
from caovand.engines.common.logs.conflicts import CONFLICT, whole_conflict
from caovand.engines.common.logs.hit import Hit, cause, finding
from caovand.engines.common.logs.rows import host, python
from caovand.engines.common.logs.rows.binaries import NUMPY, numpy_user
from caovand.engines.common.logs.rows.kernel_owners import with_owner
from caovand.engines.common.logs.rows.raised import (
    BUILDING,
    family_of,
    packages,
)
from caovand.engines.common.logs.signature import MAX_LINE, Signature, first
from caovand.engines.sglang.log.line import take_apart
from caovand.engines.sglang.log.options import known_of
from caovand.engines.sglang.log.phases import read
from caovand.engines.sglang.log.signatures import (
    BY_ID,
    HARMLESS,
    MISFIT,
    NO_FIGURE,
    NO_SIZES,
    REFUSED,
    SIGNATURES,
    UNBALANCED,
    UNSERVED,
)

_REFUSAL_DISTANCE = 20
"""Maximum lines between the refusal of a prompt and the exception in its handling."""
MAX_TRACE_LINES = 200
"""Maximum lines of tracebacks, for eight ranks."""
_REPORTS = re.compile(
    r"Scheduler hit an exception|Received sigquit from a child|SIGQUIT received\.|"
    r"Subprocess \w{1,60} \(pid=|Rank \d{1,4} scheduler (?:died|is dead)|"
    r"Exit code: -?\d|Initialization failed\.|"
    r"(?:\w{1,40} )?[Ww]atchdog timeout \(|Capture cuda graph failed|"
    r"max_total_tokens=\d{1,12} is larger than the profiled value -|"
    r"Server warmup failed|https?://\S{1,100} \"[A-Z]{3,7} https?://|"
    r"ERROR: {1,8}\[Errno|\[Errno|TokenizerManager hit an exception|"
    r"(?:Decode|Prefill) transfer failed for request|Failed to send kv chunk|"
    r"Input length \(\d{1,9} tokens\) exceeds the maximum allowed "
)
"""Prefixes of SGLang's messages that report a failure: other messages may quote a request."""
_RAW = re.compile(
    r"(?!Error: )(?:\w{1,60}\.){0,6}\w{0,60}(?:Error|Exception|OutOfResources)(?:: |\(|$)"
    r"|[\w./+-]{1,300}:\d{1,6}:\d{1,6}: fatal error: |[\w./-]{0,80}(?:launch_server\.py"
    r"|sglang(?: serve)?): "
    r"error: |Message: 'Received sigquit|terminate called after|  what\(\): "
    r"|Initialization failed\. |\[E \w{1,40}\.cpp:\d|Failed to instantiate \w{1,80}: "
    r"|ERROR: {1,8}\[Errno"
    r"|\[rank\d{1,4}\]|Fatal Python error: |CUDA (?:error|Error)(?: \(\S{1,200}\))?: |\[E\d{3} "
    r"|(?:\[[A-Z]{2}\d{1,3}(?: [A-Z]{2}\d{1,3}){0,4}\] )?Scheduler hit an exception"
)
"""Prefixes of lines without SGLang's own prefix that can be evidence."""
_CONFIGURING = re.compile(
    r"/sglang/srt/(?:server_args\.py|configs/|(?:utils/)?hf_transformers)"
    r"|/transformers/(?:models/auto/|configuration_utils\.py)"
)
_HANDLING = re.compile(r"/sglang/srt/(?:entrypoints/|managers/(?:tokenizer_manager|io_struct)\.py)")
"""Code that reads and answers requests: its exceptions end only the request."""
_LOADERS = re.compile(r"load_weights|weight_loader|load_\w{0,60}weight")
Match = tuple[Signature, Mapping[str, str]]
"""A row and the values that it captured."""
_PHASE_OF = {
    "load_model": "load", "init_memory_pool": "kv", "profile_max_num_token": "kv",
    "init_cuda_graphs": "capture", "init_device_graphs": "capture", "capture": "capture",
    "event_loop_normal": "serving", "event_loop_overlap": "serving", "exposed_step": "serving",
}  # fmt: skip
"""Functions that belong to one phase, for excerpts that begin with the failure."""


_IGNORED = re.compile(
    r"Ignore import error when loading sglang\.(?:\w{1,40}\.){0,4}(?P<model>\w{1,60})[:.] "
    r"(?P<reason>.{3,1000})"
)
"""Why the code of a model could not be imported; SGLang then rejects its architecture."""
_SHARED_LETTERS = 4
"""Letters in which a module of sglang/srt/models and its architectures agree: deepseek_v2.py has
DeepseekV3ForCausalLM."""
_VAGUE = frozenset({"sglang.exception", "engine.import"})
_REQUEST_EXCEPTIONS = frozenset({"python.locale", "python.loop", "python.database", "hub.streamer"})
"""Exceptions of Python and of the hub that code which handles a request raises for that alone."""
_WARMUP = ("_wait_and_warmup", "_execute_server_warmup")
"""Functions that send the server's own first request."""


class _Trace:
    """The frames of the latest traceback."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.frames: list[str] = []
        self.phase = ""
        self._reads_weights = self._ends = False

    def feed(self, message: str) -> None:
        """Feed the log's next line."""
        if "Traceback (most recent call last)" in message:
            self.files, self.frames, self.phase, self._reads_weights = [], [], "", False
            self._ends = bool(_REPORTS.match(message))
        elif frame := python.frame_of(message):
            function = frame["function"] or ""
            self.files.append(frame[1])
            self.frames.append(f"{frame[1]}:{function}")
            self.phase = _PHASE_OF.get(function, self.phase)
            self._reads_weights |= bool(_LOADERS.search(function))

    @property
    def raised_by_reader(self) -> bool:
        """Whether the exception came from code that reads options and the model's configuration."""
        return bool(self.files) and _CONFIGURING.search(self.files[-1]) is not None

    @property
    def sets_defaults(self) -> bool:
        """Whether the exception came from the code that chooses options by the card's memory."""
        return bool(self.files) and self.files[-1].endswith("/srt/server_args.py")

    def is_building(self, message: str) -> bool:
        """Whether the exception came from code that fails the same way at every start."""
        family = family_of(self.frames, message)
        return family is not None and family.id in BUILDING

    @property
    def sets_up_drafts(self) -> bool:
        """Whether the exception came from code that loads the model of the drafts."""
        return any("/sglang/srt/speculative/" in file for file in self.files)

    @property
    def warms_up(self) -> bool:
        """Whether the exception came from the server's own first request."""
        return any(frame.endswith(_WARMUP) for frame in self.frames)

    @property
    def is_of_request(self) -> bool:
        """Whether the exception came from code that handles a request."""
        handling = bool(self.files) and _HANDLING.search(self.files[-1]) is not None
        return handling and not self._ends

    def row_of(self, message: str) -> Signature | None:
        """The row for an exception that only the raising code explains."""
        if self._reads_weights and MISFIT.pattern.match(message):
            return MISFIT
        reads = any(map(_CONFIGURING.search, self.files))
        if reads and REFUSED.pattern.match(message):
            return REFUSED
        return family_of(self.frames, message)


class _IgnoredImports:
    """Code of models that could not be imported, so that SGLang does not know these models."""

    def __init__(self) -> None:
        self._ignored: dict[str, tuple[int, str, str]] = {}

    def feed(self, index: int, message: str) -> None:
        """Feed the log's next line."""
        if match := _IGNORED.search(message[:MAX_LINE]):
            self._ignored.setdefault(_letters(match["model"]), (index, message, match["reason"]))

    def captures(self, architecture: str) -> Mapping[str, str]:
        """Why this architecture's code is missing, else why another model's is."""
        if ignored := self._ignored.get(_letters(architecture)):
            return {"ignored": ignored[2]}
        last = next(reversed(self._ignored.values()), None)
        return {"others": last[2]} if last else {}

    def reason(self, architecture: str, phase: str) -> Hit | None:
        """Why the code of this architecture is missing, if a row knows the reason."""
        if (ignored := self._ignored.get(_letters(architecture))) is None:
            return None
        index, message, reason = ignored
        for line in (reason, f"ModuleNotFoundError: {reason}", f"ImportError: {reason}"):
            match = first(SIGNATURES, line)
            if match and match[0].kind in ("cause", "generic") and match[0].id not in _VAGUE:
                return Hit(index, message, phase, *match)
        return None


def _letters(name: str) -> str:
    """The beginning of a module's or an architecture's name, which both have in common."""
    return "".join(filter(str.isalpha, name.lower()))[:_SHARED_LETTERS]


def announces_failure(line: str) -> bool:
    """Whether a line says that a process failed: the cause is near it."""
    parts = take_apart(line)
    return parts.at_s is not None and bool(BY_ID["sglang.sigquit"].pattern.match(parts.message))


@dataclass(frozen=True)
class _Evidence:
    """A line that a row matches, with what the log shows around it."""

    row: Signature
    captures: Mapping[str, str]
    message: str
    index: int
    lines: Sequence[str]
    trace: _Trace

    def refine(self) -> Match:
        """The row and captures, more precise where the traceback or the lines before allow it."""
        refine = _REFINEMENTS.get(self.row.id)
        if refined := refine and refine(self):
            return refined
        if self.trace.raised_by_reader or self.trace.is_building(self.message):
            return python.as_raised_by_reader(self.row), self.captures
        return self.row, self.captures


def _by_trace(evidence: _Evidence) -> Match:
    row = evidence.trace.row_of(evidence.message) or evidence.row
    return row, {**evidence.captures, **packages(evidence.trace.frames)}


def _by_caller(evidence: _Evidence) -> Match | None:
    called = caller(evidence.trace.frames, evidence.captures)
    return (evidence.row, {**evidence.captures, **called}) if called else None


def _by_source(evidence: _Evidence) -> Match | None:
    """The value that SGLang computes from the card's memory in the line of code printed before."""
    if not evidence.trace.sets_defaults:
        return None
    source = next(reversed(evidence.lines[max(evidence.index - 2, 0) : evidence.index]), "")
    return (NO_SIZES if "speculative" in source else NO_FIGURE, evidence.captures)


_REFINEMENTS: Mapping[str, Callable[[_Evidence], Match | None]] = {
    "sglang.exception": _by_trace,
    "sglang.unbalanced": lambda at: (UNBALANCED, at.captures) if at.trace.sets_up_drafts else None,
    "sglang.args.unknown": lambda at: (at.row, known_of(at.captures)),
    "sglang.arch": lambda at: with_owner(at.row, at.captures, at.trace.frames),
    "config.none": _by_source,
    "client.refused": lambda at: (UNSERVED, at.captures) if at.trace.warms_up else None,
    CONFLICT: lambda at: whole_conflict(at.row, at.captures, at.lines),
    IMPORTS: lambda at: (at.row, {**at.captures, **importer(at.trace.frames, at.captures)}),
    NUMPY: lambda at: (at.row, {**at.captures, **numpy_user(at.lines, at.index)}),
    MISMATCH: _by_caller,
}
"""By row, how a line is refined; None leaves it as it is."""


def find_cause(
    lines: Sequence[str], phase: str = "serving", *, alive: bool = False
) -> Finding | None:
    """The cause of the engine's failure in its log; None without evidence.

    `phase` is the engine's phase, for logs that do not show it. An engine that is `alive` has
    failed only if it says so.
    """
    hits: list[Hit] = []
    shown, trace, ignored = "", _Trace(), _IgnoredImports()
    for index, line in enumerate(lines):
        mark, _ = read(line)
        if mark is not None:
            shown = "serving" if mark.progress == 1.0 else mark.phase or shown
            continue
        message = take_apart(line).message
        trace.feed(message)
        ignored.feed(index, message)
        if not _is_evidence(line) or first(HARMLESS, message):
            continue
        message += _continuation(message, lines, index)
        match = first(SIGNATURES, message)
        if match is None:
            continue
        row, captures = _Evidence(*match, message, index, lines, trace).refine()
        here = shown or trace.phase or phase
        if row.id == "sglang.model.architecture":
            architecture = captures.get("architecture", "")
            if reason := ignored.reason(architecture, here):
                hits.append(reason)
                continue
            captures = {**captures, **ignored.captures(architecture)}
        of_request = row.kind == "generic" or row.id in _REQUEST_EXCEPTIONS
        if here == "serving" and of_request and trace.is_of_request:
            trace.files = []
            continue
        hits.append(Hit(index, message, here, row, captures))
    if alive and not any(map(announces_failure, lines)):
        return None
    if (first_cause := cause(hits)) is not None:
        refused = _refused_near(hits, first_cause)
        return finding(refused) if refused else first_cause
    return finding(_proof(hits)) if hits else None


def _continuation(message: str, lines: Sequence[str], index: int) -> str:
    """The words to add to a message that explains nothing without the lines before it."""
    if message.isidentifier():
        before = reversed(lines[max(index - python.RAISED, 0) : index])
        return python.raised_at(take_apart(line).message for line in before)
    if REASON in message:
        before = reversed(lines[max(index - SOURCE, 0) : index])
        return kernel_before(take_apart(line).message for line in before)
    return ""


def _refused_near(hits: Sequence[Hit], exception: Finding) -> Hit | None:
    """The refusal of a prompt printed with an exception that only has a Python type's words."""
    if not exception.text.startswith("TypeError: "):
        return None
    near = (hit for hit in hits if abs(hit.index + 1 - exception.line) <= _REFUSAL_DISTANCE)
    return next((hit for hit in near if hit.row.id == "args.pool"), None)


def _proof(hits: Sequence[Hit]) -> Hit:
    """The first line that shows how a process ended, else the first that says one did."""
    return next((hit for hit in hits if hit.row.kind == "consequence"), hits[0])


def _is_evidence(line: str) -> bool:
    parts = take_apart(line)
    if parts.at_s is not None:
        return bool(_REPORTS.match(parts.message))
    return bool(_RAW.match(line) or python.is_raw(line) or host.is_raw(line))
