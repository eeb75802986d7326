"""Strip the additions of other tools from an engine's line, and the traces of pasting.

One table for `explain`, the daemon and every engine: a router that prints for its children,
torchrun, docker compose, journald, kubectl, container runtimes, terminals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

# The escape character is often lost when people paste, `[1;36m(EngineCore pid=7)[0;0m`, or spelt
# as in `ESC[33m`.
COLOUR = re.compile(
    r"(?:\x1b|\\u001b|\\x1b|\\033|\^\[|ESC|␛)\[[0-9;?]{0,20}[A-Za-z]"
    r"|\[\d{1,3}(?:;\d{1,3}){0,4}m"
)
OWN_PROCESSES = r"APIServer|EngineCore|StageEngineCore|Worker(?!Dict)|VllmWorker|RayWorker"
"""vLLM's names for its processes: they stay, those of Ray's actors around them go."""
_DAY = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,:+-]{0,20}Z?"
_UNIT = r"(?:[^\s:]{1,100} )?[\w@.:/-]{1,100}\[\d{1,10}\]: "
_PREFIXES = {
    "syslog, the kernel's ring buffer, journalctl": (
        rf"(?:(?:\w{{3}}|\d{{1,2}}月) [ \d]\d \d\d:\d\d:\d\d|\[ {{0,12}}\d{{1,12}}\.\d{{1,9}}\]"
        rf"|{_DAY}) {_UNIT}"
    ),
    "syslog without a process id": (
        r"\w{3} [ \d]\d \d\d:\d\d:\d\d [^\s:]{1,100} [a-z][\w.-]{1,60}: (?=\S)"
    ),
    "a named stream, perhaps with a level": r"(?:[A-Z]{4,8} )?\[[\w-]{1,40} std(?:out|err)\] ",
    "docker compose": r"[\w.@-]{1,100} {1,40}\| ",
    "kubectl logs --prefix": r"\[pod/[\w./-]{1,300}\] ",
    "Python's logging": rf"{_DAY} - [\w.]{{1,60}} - [A-Z]{{4,8}} - ",
    "a time, perhaps with a zone or a container's stream": (
        rf"{_DAY} (?:[+-]\d\d:?\d\d (?:[A-Z]{{2,5}} )?)?(?:\| |std(?:out|err) [FP] )?"
    ),
    "a time glued to Ollama's": rf"{_DAY}(?=time=\d|\d{{4}}/\d\d/\d\d |\[GIN\] )",
    "a time in brackets": (rf"\[{_DAY}\] (?=(?!SIG)[A-Z]{{4,8}} |\(\w|Traceback| {{2}}File)"),
    "Fly.io": r"app\[\w{8,20}\] \w{2,4} \[\w{3,8}\] ",
    "dmesg -T": r"\[\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ",
    "a time, a level and a source in brackets": (
        rf"\[{_DAY}\] \[\w{{1,10}}\] \[[\w-]{{1,30}}\] (?:[\w.]{{1,20}}: )?"
    ),
    "journalctl without a time": r"[\w.-]{1,100} [\w@.-]{1,100}\[\d{1,10}\]: (?=\S)",
    "docker build, seconds since the step began": (r"(?:#\d{1,4} )?\d{1,5}\.\d{2,3} (?=[\S ])"),
    "a number of the line": r"\d{1,4}: (?=[(\[A-Z]|ggml_|llama_|time=|level=)",
    "pm2": r"\d{1,3}\|[\w.@-]{1,60} {1,40}\| ",
    "a Python file": r"\[\w{1,60}\.py:\d{1,6}\] ",
    "a process id": r"\[\d{1,10}\] ",
    "torchrun before glog": r"\[rank\d{1,4}\]: ?(?=[IWEF]\d{4} )",
    "torchrun": r"\[rank\d{1,4}\]: ",
    "a quotation": r"> (?=\S| {2,12}File )",
    "a terminal's border": r"[│|] ",
    "glog": (
        r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{3,9} {1,4}\d{1,10} "
        r"\S{1,200}:\d{1,6}\] (?:\[\d{1,6}/\d{1,6}\] )?"
    ),
    "a host and a program before a process": r"[\w.-]{5,100} [\w.-]{1,60} (?=\(\w{1,40} pid=\d)",
    "an actor of Ray": (
        rf"\((?!{OWN_PROCESSES})[\w:.-]{{1,80}} pid=\d{{1,10}}(?:, ip=[\d.]{{1,45}})?\) ?"
    ),
    "JSON": r"\"(?:message|msg|log)\": ?\"(?=\S)",
    "spaces before a time": r" {1,3}(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)",
    "pytest": r"E (?=\w{1,60}: )",
    "a list": r"\* (?=\w{1,60}Error: )",
    "spaces before an error": r" {1,8}(?=(?:[\w.]{1,80}(?:Error|Exception)|error): )",
    "an exception group": r" {1,4}\| (?=\S)",
    "a frame of an exception group": r" {1,4}\|(?= {2,12}File )",
}
"""What other programs put before a line, by who does."""
_PREFIX = re.compile("|".join(_PREFIXES.values()))
_LOGGER = re.compile(
    r"\[?\d{4}-(?P<day>\d\d-\d\d)[T ](?P<time>\d\d:\d\d:\d\d)[\d.,:+-]{0,20}Z?\]?(?:"
    r" - (?P<a>vllm\.[\w.]{1,100}) - (?P<la>[A-Z]{4,8}) - "
    r"| \| (?P<lb>[A-Z]{4,8}) {1,8}\| (?P<b>vllm\.[\w.]{1,100}):\w{1,60}:\d{1,6} - "
    r"| ?\[(?P<c>vllm\.[\w.]{1,100})\] ?\[(?P<lc>[A-Z]{4,8})\] (?:- )?"
    r"| ?\[?(?P<ld>[A-Z]{4,8})\]? {1,4}\[?(?P<d>vllm\.[\w.]{1,100})\]?:? (?:- )?)"
    r"|(?P<le>DEBUG|INFO|WARNING|ERROR|CRITICAL):(?P<e>vllm\.[\w.]{1,100}): ?"
)
"""How Python's logging, Hydra and loguru format vLLM's loggers in other programs."""
_MARKUP = re.compile(r"</?(?:font|b|i|span|pre|code|details|summary)(?: [^<>]{0,200})?>")
_REPEATED = re.compile(r" \[repeated \d{1,6}x across cluster\].{0,200}$")
_LABEL = re.compile(r"\[[A-Za-z][\w .-]{1,40}\] |[A-Za-z][\w.-]{0,30} [\w .-]{1,30}(?::| \||>) ")
_NO_LABEL = re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|.{0,40}\b(?:[Ee]rror|[Ww]arning|[Ff]ailed|fatal)\b"
)
_MIN_LABELLED = 3
"""Labels that another program puts on all lines, and prefixes of an engine's own lines."""
_LOGGER_WITHIN = 60
_MOST = 4  # prefixes of one line: a container's time within a unit's within a terminal's border
_BORDER = " │|"
_WIDTHS, _MIN_BROKEN = (60, 400), 3
"""Columns of a terminal, and how many broken lines are more than a coincidence."""
_BEGINS = re.compile(
    r" {0,20}File \"|Traceback|\((?:\w{1,40} )?\w{1,40} ?pid=|\[\d{4}-|\[\w{1,40}\.py:|\[rank"
    r"|\d{4}[-/]\d\d|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|time=|\w{3} [ \d]\d \d\d:"
    r"|[\w.@-]{1,100} {1,40}\| "
    r"|[\w.]{0,80}(?:Error|Exception)\b|(?:[A-Z]\w{0,40}|[a-z]{1,20}_\w{1,40}"
    r"|error|warning|note|info|fatal|panic|main|docker|llama|ollama|vllm) {0,12}: |[-=+|]{3}"
)
"""Prefixes of a separate line; the rest of a broken one may begin with anything."""
_OPEN = re.compile(r"[\w.]{1,100}(?:Error|Exception):(?: .{0,600}[\w:])?$")
"""An exception whose text does not end with its line."""
_REST = re.compile(r"['\"`(\[{a-z\d]")
"""A continuation of an exception's text in the next line, except after a colon."""
_MAX_REST = 4
_ENDS_FRAME, _MAX_NAME = re.compile(r"\", line \d{1,7}, in \S{1,100}$"), 120
_BAR = re.compile(
    r".*▕[█-▏ ]*▏?(?:[ \r]{0,40}(?:\d[\d.]{0,8} ?[kKMGT]?i?B(?:/s|/\d[\d.]{0,8} ?[kKMGT]?i?B)?"
    r"|\d{1,4}[hms]))*[ \r]*"
)
"""The bars of Ollama's downloads, the last with its figures, which a copy puts on one line."""
_VALUES = re.compile(r" {12,60}(?:\w{1,30}=)?[\[{]{1,2}'")
"""A list or mapping as Python prints it."""


def unwrap(line: str) -> str:
    """One line as the engine printed it, without the bars of a download that it follows."""
    if "▕" in line and (bar := _BAR.match(line)) and line[bar.end() :].strip():
        line = line[bar.end() :]
    if line.startswith(('{"log":', '{"level":')):  # Docker's own files, and Node's programs
        line = _of_record(line)
    for _ in range(_MOST):
        if "vllm." in line[:_LOGGER_WITHIN] and (logged := _LOGGER.match(line)):
            return _as_vllm_prints(logged) + line[logged.end() :]
        prefix = _PREFIX.match(line)
        if prefix is None:
            break
        if line[0] == "│":
            line = line.rstrip(_BORDER)
        line = line[prefix.end() :]
    return _REPEATED.sub("", line) if "[repeated " in line else line


def _as_vllm_prints(logged: re.Match[str]) -> str:
    """The prefix that vLLM's own formatter would put before a line of this logger."""
    found = {name: text for name, text in logged.groupdict().items() if text}
    level = next(text for name, text in found.items() if name[0] == "l")
    logger = next(text for name, text in found.items() if len(name) == 1)
    at = f"{found.get('day', '00-00')} {found.get('time', '00:00:00')}"
    return f"{level} {at} [{logger.rpartition('.')[2]}.py:0] "


def without_label(text: str) -> str:
    """The text without the label of another program that every line has."""
    lines = text.split("\n")
    printed = [line for line in lines if line.strip()]
    label = _LABEL.match(printed[0]) if len(printed) >= _MIN_LABELLED else None
    if label is None or _NO_LABEL.match(label[0]):
        return text
    if not all(line.startswith(label[0]) for line in printed):
        return text
    return "\n".join(line.removeprefix(label[0]) for line in lines)


def join_wrapped(text: str) -> str:
    """The text with the lines joined that a terminal broke at its width, as tmux copies them.

    The rest of a broken line becomes an empty one, so that every line keeps its number.
    """
    return _join_at_width("\n".join(_with_rest(_with_values(text.split("\n")))))


def _with_rest(lines: list[str]) -> list[str]:
    """The lines, with the text of an exception that was printed, or pasted, in several lines."""
    for n, line in enumerate(lines):
        if not line.endswith(":") and "Error: " not in line and "Exception: " not in line:
            continue
        for rest in range(n + 1, min(n + 1 + _MAX_REST, len(lines))):
            if not _OPEN.match(lines[n]) or not lines[rest] or _BEGINS.match(lines[rest]):
                break
            if not lines[n].endswith(":") and not _REST.match(lines[rest].lstrip()):
                break
            lines[n] += f" {lines[rest].strip()}"
            lines[rest] = ""
    return lines


def _with_values(lines: list[str]) -> list[str]:
    """The lines, with the values of a message that stand alone on the next line, far indented."""
    for n in range(len(lines) - 1, 0, -1):
        if lines[n - 1] and _VALUES.match(lines[n]):
            lines[n - 1] += f" {lines[n].strip()}"
            lines[n] = ""
    return lines


def _join_at_width(text: str) -> str:
    lines = text.split("\n")
    width = max(map(len, lines), default=0)
    if not _WIDTHS[0] <= width <= _WIDTHS[1]:
        return text
    broken = [
        n for n, line in enumerate(lines[:-1])
        if len(line) >= width - 1 and lines[n + 1] and not _BEGINS.match(lines[n + 1])
        and not (lines[n + 1].startswith("    ") and _ENDS_FRAME.search(line[-_MAX_NAME:]))
    ]  # fmt: skip
    if len(broken) < _MIN_BROKEN:
        return text
    for n in reversed(broken):
        # A blank at the edge is not copied.
        lines[n] += (" " if len(lines[n]) < width else "") + lines[n + 1]
        lines[n + 1] = ""
    return "\n".join(lines)


def without_markup(text: str) -> str:
    """The text without the HTML tags around a copy from a terminal or an editor."""
    return _MARKUP.sub("", text) if "</" in text else text


def one_text(line: str) -> Sequence[str]:
    """A printed line as the only text in it, for engines that print one text per line."""
    return (unwrap(line),)


def without_colours(text: str) -> str:
    """The text without escape sequences, including those that lost their first character."""
    return COLOUR.sub("", text) if "[" in text else text


def loads(line: str) -> Any:
    """The value of a line of JSON; raises ValueError or RecursionError if it is not one.

    JSON can escape half a surrogate pair, which cannot be printed: it becomes a question mark.
    """
    return json.loads(json.dumps(json.loads(line), ensure_ascii=False).encode(errors="replace"))


def _of_record(line: str) -> str:
    try:
        record = loads(line)
        text = record["log"] if "log" in record else record["msg"] if "pid" in record else line
        return without_colours(str(text)).rstrip("\r\n")
    except (ValueError, KeyError, RecursionError):
        return line
