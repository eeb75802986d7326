"""Explain a complete vLLM log after the fact: versions, phases, values, the failure, advice.

Pure: lines in, an Explanation out. For a log of several starts the last one counts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from caovand.core.engine.log import Explanation, PhaseTime
from caovand.core.healing.failure import Failure, Finding
from caovand.core.health.drafting import AcceptanceTrend
from caovand.core.health.observation import LogMark
from caovand.core.plan import is_lookup
from caovand.core.secrets import hide_in
from caovand.engines.common.logs.figures import Figure
from caovand.engines.common.logs.rows.requests import unknown_path
from caovand.engines.common.logs.whole_log import HIDDEN, answers, plan_from_log, without_secrets
from caovand.engines.common.logs.wrapping import without_colours
from caovand.engines.vllm.healing.advice import advise
from caovand.engines.vllm.log.cause import find_cause
from caovand.engines.vllm.log.json_lines import NO_TIME, unpack
from caovand.engines.vllm.log.line import take_apart
from caovand.engines.vllm.log.phases import phase_of, read, read_figures
from caovand.engines.vllm.log.refused import refused_request
from caovand.engines.vllm.log.signatures import benign

WINDOWED = ("generation_tps", "prompt_tps", "acceptance_length")
HEARTBEATS = 2  # at the end of a log, which mean that the engine hangs
MIN_COLLAPSED_INTERVALS = 3  # intervals in a row with drafts and none accepted
_METHOD = re.compile(r"""['"]method['"]: ['"]([\w-]{1,40})""")

_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
# Wrappers that only a serving engine prints.
_SERVING = re.compile(
    r"EngineCore encountered a fatal error|AsyncLLM output_handler failed"
    r"|WorkerProc hit an exception"
)
_HEAD = 400  # characters of a line that may contain one
_OMNI = "vllm_omni/"
_NAMED = 2000  # characters of a line that may name the model
_WSL = re.compile(r"\bWSL2?\b")  # of the few warnings that name it
_PROMPTS = frozenset({"logger.py", "request_logger.py"})  # files that log what clients sent
_NO_CONFIGURATION = frozenset({"model.config", "model.missing"})
_IMAGES = re.compile(
    r"(?<![\w./-])(?P<model>/?(?:[\w.-]{1,60}/){0,8}[\w.-]{0,40}?(?:Qwen-Image|FLUX[.-]?[12]"
    r"|[Ss]table-(?:[Dd]iffusion|audio|video)|SDXL|sdxl|Wan2\.\d|Hunyuan(?:Video|Image)|Z-Image"
    r"|LTX-?\d?-?Video|CogVideo|CogView|GLM-Image|PixArt|Kolors|HiDream|Lumina-Image|OmniGen"
    r"|LongCat-(?:Image|Video)|Ovis-Image)[\w.-]{0,60})"
)
"""Names of models that make images, video or sound, and are laid out for Diffusers."""

_CODED = re.compile(
    r"(?<![\w-])(?:(?P<v32>DeepSeek-V3\.2(?!-Exp))|(?P<v4>DeepSeek-V4)|(?P<mistral>"
    r"(?:Mistral|Ministral|Mixtral)-[\w.-]{1,40}-(?:Instruct|Reasoning)"
    r"|(?:Magistral|Devstral|Pixtral|Voxtral)-))[\w.-]{0,60}"
)
_MODES = {"v32": "deepseek_v32", "v4": "deepseek_v4", "mistral": "mistral"}
"""Tokenizer modes of vLLM for models whose chats code formats, not a template."""


@dataclass(frozen=True)
class _Line:
    """One printed line and its number in the file; bars share a number."""

    number: int
    text: str


def explain(text: str) -> Explanation:
    """Explain the text of a log file."""
    lines = _last_start(_split_lines(text))
    seen: dict[str, Figure] = {}
    windows: dict[str, list[float]] = {}
    marks: list[tuple[LogMark, str]] = []
    harmless: dict[str, int] = {}
    configured: Mapping[str, Any] = {}
    for line in lines:
        parts = take_apart(line.text)
        mark, figures_here = read(line.text)
        for name, value in figures_here.items():
            seen.setdefault(name, value)
            if name in WINDOWED and isinstance(value, (int, float)) and value > 0:
                windows.setdefault(name, []).append(value)
        if parts.level == "WARNING" and parts.source not in _PROMPTS and _WSL.search(parts.message):
            seen["machine"] = "WSL"
        if mark:
            marks.append((mark, parts.time))
        row = benign(parts.message)
        if row:
            harmless[row.id] = harmless.get(row.id, 0) + 1
        if parts.message.startswith("non-default args: ") and parts.source not in _PROMPTS:
            configured = _public_arguments(parts.message)
    reached = _last_phase(lines)
    finding = _finding(lines, reached)
    version = seen.pop("version", None)
    seen.update(_over_windows(windows))
    if finding is not None and finding.signature in _NO_CONFIGURATION:
        seen.update(_makes_images(lines))
    if finding is not None and finding.signature == "args.template":
        seen.update(_coded_chats(lines))
    return Explanation(
        str(version) if version else None, _phase_times(marks), reached, finding,
        tuple(advise(finding, seen, plan_from_log(configured))) if finding else (),
        seen, configured, harmless,
    )  # fmt: skip


def _over_windows(windows: Mapping[str, Sequence[float]]) -> Mapping[str, Figure]:
    """From vLLM's statistics every ten seconds: the usual value while busy, and the best rate."""
    figures: dict[str, Figure] = {
        name: round(median(values), 2) for name, values in windows.items()
    }
    if "generation_tps" in windows:
        figures["generation_best_tps"] = max(windows["generation_tps"])
    return figures


def _split_lines(text: str) -> list[_Line]:
    lines: list[_Line] = []
    for number, raw in enumerate(re.split(r"\r?\n", without_colours(text)), start=1):
        for piece in raw.split("\r"):
            lines.extend(_Line(number, text) for text in unpack(piece))
    return lines


def _last_start(lines: list[_Line]) -> list[_Line]:
    """The lines of the last start, from its banner or arguments on."""
    banner = 0
    for index, line in enumerate(lines):
        parts = take_apart(line.text)
        message = parts.message
        if parts.source in _PROMPTS:
            continue
        if message.startswith("non-default args: ") or "█     █     █▄   ▄█" in message:
            recent = index - banner < 10 and banner > 0
            banner = banner if recent else index
    return lines[banner:]


def _makes_images(lines: Sequence[_Line]) -> Mapping[str, Figure]:
    """The name of a model that vLLM alone does not serve, unless vllm-omni reads it."""
    if any(_OMNI in line.text for line in lines):
        return {}
    named = (match for line in lines if (match := _IMAGES.search(line.text[:_NAMED])))
    match = next(named, None)
    return {"images": match["model"]} if match else {}


def _coded_chats(lines: Sequence[_Line]) -> Mapping[str, Figure]:
    """The name of a model that formats chats by code, and the tokenizer mode that has it."""
    named = (match for line in lines if (match := _CODED.search(line.text[:_NAMED])))
    match = next(named, None)
    if match is None:
        return {}
    return {"coded": match[0], "mode": next(_MODES[name] for name in _MODES if match[name])}


def _last_phase(lines: Sequence[_Line]) -> str:
    reached = "resolve"
    for line in lines:
        mark = phase_of(line.text)
        if mark and mark.phase and reached != "serving":
            done = mark.phase == "http" and mark.progress == 1.0
            reached = "serving" if done else mark.phase
        elif _shows_serving(line.text, reached):
            reached = "serving"
    return reached


def _shows_serving(text: str, reached: str) -> bool:
    """Whether a line without a phase shows a serving engine; an excerpt may begin with one."""
    if "Avg generation throughput:" in text and "loggers.py" in text:
        return True
    return reached == "resolve" and take_apart(text).uvicorn and answers(text)


def _finding(lines: Sequence[_Line], reached: str) -> Finding | None:
    texts = [line.text for line in lines]
    finding = (
        find_cause(texts, _first_phase(texts))
        or _find_hang(texts, reached)
        or _find_collapse(texts)
    )
    refused = refused_request(texts)
    if refused and finding is not None and finding.line == refused.line:
        rest = [*texts[: refused.line - 1], "", *texts[refused.line :]]
        finding = find_cause(rest, _first_phase(texts))
    finding = finding or refused or unknown_path(texts)
    if finding is None:
        return None
    return without_secrets(finding, lines[finding.line - 1].number)


def _first_phase(texts: Sequence[str]) -> str:
    """The engine's phase when the log begins: an excerpt of a journal may begin late."""
    for line in texts:
        mark = phase_of(line)
        if mark and mark.phase:
            return "resolve"
        if _is_live(line) is not None or _SERVING.search(line[:_HEAD]):
            return "serving"
    return "resolve"


def _is_live(text: str) -> bool | None:
    """Whether vLLM's line of statistics shows work; None for another line."""
    if "Avg generation throughput:" not in text or "loggers.py" not in text:
        return None
    counts = read_figures(text)
    return bool(counts.get("generation_tps")) or counts.get("running") == 0


def _find_hang(texts: Sequence[str], reached: str) -> Finding | None:
    """The finding for a log that ends in nothing but heartbeats: the engine hung there."""
    first = waited_s = beats = 0
    for index, line in enumerate(texts):
        mark = phase_of(line)
        if mark and mark.heartbeat:
            first = first if beats else index + 1
            beats += 1
            seconds = re.search(r"in (\d{1,9}) seconds", line)
            waited_s += int(seconds.group(1)) if seconds else 0
        elif (mark and not mark.heartbeat) or _is_live(line):
            beats = waited_s = 0
    if beats < HEARTBEATS:
        return None
    failure: Failure = "hang" if reached == "serving" else "start-stall"
    message = take_apart(texts[first - 1]).message
    captures = {"waited_s": str(waited_s)}
    return Finding(failure, message, reached, captures, "benign.shared-memory", first)


def _find_collapse(texts: Sequence[str]) -> Finding | None:
    """The finding for drafts of which almost none are accepted, interval after interval, up to the
    end."""
    drafting, barren, first = AcceptanceTrend(), 0, 0
    for index, line in enumerate(texts):
        counts = read_figures(line)
        if "drafted" not in counts:
            continue
        doubtful = barren > 0 or drafting.doubtful
        drafted, accepted = float(counts["drafted"]), float(counts["accepted"])
        drafting = drafting.after(drafted, accepted)
        # A slow engine drafts little per interval: the log is read once, so all intervals count.
        barren = 0 if accepted > 0 else barren + (drafted > 0)
        first = first if doubtful else index + 1
    if barren < MIN_COLLAPSED_INTERVALS and not drafting.collapse(
        lookup_drafts=_uses_lookup_drafts(texts)
    ):
        return None
    message = take_apart(texts[first - 1]).message
    intervals = str(max(barren, len(drafting.fallen)))
    return Finding("draft-collapse", message, "serving", {"intervals": intervals}, "", first)


def _uses_lookup_drafts(texts: Sequence[str]) -> bool:
    """Whether the arguments in the log configure drafts that are looked up in the text."""
    methods = (_METHOD.search(line) for line in texts if "non-default args" in line)
    return any(match and is_lookup(match[1]) for match in methods)


def _phase_times(marks: Sequence[tuple[LogMark, str]]) -> tuple[PhaseTime, ...]:
    """Time from each phase's mark to the next one's, summed if a phase returns."""
    spent: dict[str, float | None] = {}
    phase = ""
    since: int | None = None
    last: int | None = None
    for mark, stamp in marks:
        now = _parse_moment(stamp)
        last = now or last
        if mark.phase is not None and mark.phase != phase:
            _spend(spent, phase, since, now)
            phase, since = mark.phase, now or since
            spent.setdefault(phase, None)
        if mark.phase == "http" and mark.progress == 1.0:
            break
    _spend(spent, phase, since, last)
    return tuple(PhaseTime(name, seconds) for name, seconds in spent.items())


def _spend(spent: dict[str, float | None], phase: str, since: int | None, now: int | None) -> None:
    if phase and since and now and now >= since:
        spent[phase] = (spent.get(phase) or 0.0) + float(now - since)


def _parse_moment(stamp: str) -> int | None:
    """Seconds since the start of the year for `MM-DD HH:MM:SS`; the log has no year, so each has
    366 days."""
    if not stamp or stamp == NO_TIME:
        return None
    month, day, hour, minute, second = (int(number) for number in re.findall(r"\d\d", stamp))
    days = sum(_DAYS[: month - 1]) + day - 1
    return ((days * 24 + hour) * 60 + minute) * 60 + second


def _public_arguments(message: str) -> Mapping[str, Any]:
    """The arguments that vLLM reports, without secrets."""
    try:
        arguments = ast.literal_eval(message.split(": ", 1)[1])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return hide_in(arguments, mark=HIDDEN) if isinstance(arguments, dict) else {}
