"""Find the first cause of a failure in SGLang's log.

A scheduler prints its traceback, and its parent then ends all processes: the exception explains it,
later lines do not. With several cards each rank prints its own; the first counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.callers import IMPORTS, MISMATCH, caller, importer
from caovand.engines.common.logs.compiled import REASON, SOURCE, kernel_before
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
)

_WITH = 20
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
_PHASE_OF = {
    "load_model": "load", "init_memory_pool": "kv", "profile_max_num_token": "kv",
    "init_cuda_graphs": "capture", "init_device_graphs": "capture", "capture": "capture",
    "event_loop_normal": "serving", "event_loop_overlap": "serving", "exposed_step": "serving",
}  # fmt: skip
"""Functions that belong to one phase, for excerpts that begin with the failure."""


_IGNORED = re.compile(
    r"Ignore import error when loading sglang\.(?:\w{1,40}\.){0,4}(?P<model>\w{1,60})[:.] "
    r"(?P<why>.{3,1000})"
)
"""Why the code of a model could not be imported; SGLang then does not know its architecture."""
_COMMON = 4
"""Letters in which a module of sglang/srt/models and its architectures agree: deepseek_v2.py has
DeepseekV3ForCausalLM."""
_VAGUE = frozenset({"sglang.exception", "engine.import"})
_IN_REQUESTS = frozenset({"python.locale", "python.loop", "python.database", "hub.streamer"})
"""Exceptions of Python and of the hub that code which handles a request raises for that alone."""


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


class _Ignored:
    """Code of models that could not be imported, so that SGLang does not know these models."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str, str]] = {}

    def feed(self, index: int, message: str) -> None:
        """Feed the log's next line."""
        if found := _IGNORED.search(message[:MAX_LINE]):
            self._found.setdefault(_letters(found["model"]), (index, message, found["why"]))

    def captures(self, architecture: str) -> Mapping[str, str]:
        """Why this architecture's code is missing, else why another model's is."""
        if found := self._found.get(_letters(architecture)):
            return {"ignored": found[2]}
        last = next(reversed(self._found.values()), None)
        return {"others": last[2]} if last else {}

    def reason(self, architecture: str, phase: str) -> Hit | None:
        """Why the code of this architecture is missing, if a row knows the reason."""
        if (found := self._found.get(_letters(architecture))) is None:
            return None
        index, message, why = found
        for text in (why, f"ModuleNotFoundError: {why}", f"ImportError: {why}"):
            row = first(SIGNATURES, text)
            if row is not None and row[0].kind in ("cause", "generic") and row[0].id not in _VAGUE:
                return Hit(index, message, phase, *row)
        return None


def _letters(name: str) -> str:
    """The beginning of a module's or an architecture's name, which both have in common."""
    return "".join(filter(str.isalpha, name.lower()))[:_COMMON]


def announces_failure(line: str) -> bool:
    """Whether a line says that a process failed: the cause is near it."""
    parts = take_apart(line)
    return parts.at_s is not None and bool(BY_ID["sglang.sigquit"].pattern.match(parts.message))


def find_cause(
    lines: Sequence[str], phase: str = "serving", *, alive: bool = False
) -> Finding | None:
    """The cause of the engine's failure in its log; None without evidence.

    `phase` is the engine's phase, for logs that do not show it. An engine that is `alive` has
    failed only if it says so.
    """
    hits: list[Hit] = []
    shown, trace, ignored = "", _Trace(), _Ignored()
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
        if message.isidentifier():  # alone it explains nothing
            before = reversed(lines[max(index - python.RAISED, 0) : index])
            message += python.raised_at(take_apart(one).message for one in before)
        elif REASON in message:
            before = reversed(lines[max(index - SOURCE, 0) : index])
            message += kernel_before(take_apart(one).message for one in before)
        row = first(SIGNATURES, message)
        if row is not None:
            if row[0] is BY_ID["sglang.exception"]:
                row = (trace.row_of(message) or row[0], {**row[1], **packages(trace.frames)})
            elif row[0] is BY_ID["sglang.unbalanced"] and trace.sets_up_drafts:
                row = (UNBALANCED, row[1])
            elif row[0].id == "sglang.args.unknown":
                row = (row[0], known_of(row[1]))
            elif row[0].id in (IMPORTS, NUMPY, "sglang.arch"):
                row = _of_package(row, trace.frames, lines, index)
            elif row[0].id == MISMATCH and (who := caller(trace.frames, row[1])):
                row = (row[0], {**row[1], **who})
            elif row[0].id == "config.none" and trace.sets_defaults:
                source = next(reversed(lines[max(index - 2, 0) : index]), "")
                row = (NO_SIZES if "speculative" in source else NO_FIGURE, row[1])
            elif trace.raised_by_reader or trace.is_building(message):
                row = (python.as_raised_by_reader(row[0]), row[1])
            here = shown or trace.phase or phase
            if row[0].id == "sglang.model.architecture":
                if reason := ignored.reason(row[1].get("architecture", ""), here):
                    hits.append(reason)
                    continue
                row = (row[0], {**row[1], **ignored.captures(row[1].get("architecture", ""))})
            of_request = row[0].kind == "generic" or row[0].id in _IN_REQUESTS
            if here == "serving" and of_request and trace.is_of_request:
                trace.files = []
                continue
            hits.append(Hit(index, message, here, *row))
    if alive and not any(map(announces_failure, lines)):
        return None
    if (found := cause(hits)) is not None:
        refused = _refused_near(hits, found)
        return finding(refused) if refused else found
    return finding(_proof(hits)) if hits else None


def _of_package(
    row: tuple[Signature, Mapping[str, str]], frames: Sequence[str], lines: Sequence[str], at: int
) -> tuple[Signature, Mapping[str, str]]:
    """The row and captures of a failed package, with its name by the traceback."""
    if row[0].id == IMPORTS:
        return row[0], {**row[1], **importer(frames, row[1])}
    if row[0].id == NUMPY:
        return row[0], {**row[1], **numpy_user(lines, at)}
    return with_owner(*row, frames)


def _refused_near(hits: Sequence[Hit], found: Finding) -> Hit | None:
    """The refusal of a prompt printed with an exception that only has a Python type's words."""
    if not found.text.startswith("TypeError: "):
        return None
    near = (hit for hit in hits if abs(hit.index + 1 - found.line) <= _WITH)
    return next((hit for hit in near if hit.row.id == "args.pool"), None)


def _proof(hits: Sequence[Hit]) -> Hit:
    """The first line that shows how a process ended, else the first that says one did."""
    return next((hit for hit in hits if hit.row.kind == "consequence"), hits[0])


def _is_evidence(line: str) -> bool:
    parts = take_apart(line)
    if parts.at_s is not None:
        return bool(_REPORTS.match(parts.message))
    return bool(_RAW.match(line) or python.is_raw(line) or host.is_raw(line))
