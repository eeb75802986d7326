"""Turn log lines of a JSON formatter into those of vLLM's own formatter.

vLLM accepts any formatter (`VLLM_LOGGING_CONFIG_PATH`; `--logging-config.formatter json` from
0.33); those in use share field names of the `logging` module. A record becomes one line for each
line of its message and of its traceback, all with the prefix, as in vLLM's formatter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from caovand.engines.common.logs.wrapping import loads, unwrap

NO_TIME = "00-00 00:00:00"  # for a record without a time

_LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"})
_TIME = re.compile(r"\d{4}-(\d\d-\d\d)[T ](\d\d:\d\d:\d\d)")
_PROCESS = re.compile(r"[A-Za-z][\w.-]{0,40}")


def unpack(line: str) -> tuple[str, ...]:
    """The lines in a JSON record; any other line unchanged."""
    line = unwrap(line)
    if line[:1] != "{":
        return (line,)
    try:
        record = loads(line)
    except (ValueError, RecursionError):
        return (line,)
    level = _text(record, "levelname", "level").upper()
    message = _text(record, "message", "msg")
    if level not in _LEVELS or not message:
        return (line,)
    texts = [*message.split("\n"), *_text(record, "exc_info", "exception").split("\n")]
    prefix = _prefix(record, level)
    return tuple(f"{prefix}{text}" for text in texts if text)


def _prefix(record: Mapping[str, Any], level: str) -> str:
    name = _text(record, "name", "logger")
    if name.startswith("uvicorn"):
        return f"{level}:     "
    process, pid = _text(record, "processName"), record.get("process")
    process = "APIServer" if process == "MainProcess" else process
    known = _PROCESS.fullmatch(process) and isinstance(pid, int)
    moment = _TIME.search(_text(record, "asctime", "timestamp", "time"))
    stamp = f"{moment[1]} {moment[2]}" if moment else NO_TIME
    file = _text(record, "filename") or f"{name.rpartition('.')[2] or 'unknown'}.py"
    file = re.sub(r"[\]\s:]", "_", file)
    return f"{f'({process} pid={pid}) ' if known else ''}{level} {stamp} [{file}:0] "


def _text(record: Any, *names: str) -> str:
    """The first of these entries that is a string."""
    if not isinstance(record, dict):
        return ""
    return next((record[name] for name in names if isinstance(record.get(name), str)), "")
