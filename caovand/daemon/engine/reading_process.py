"""The process that `reading` starts; keep imports few, because a restart waits for them."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from caovand.core.engine.log import Log
from caovand.core.reporting.incident import document
from caovand.core.secrets import hide

LOG_LINES = 2000
MAX_FILE_CHARACTERS = 8 << 20

ReadingRequest = Mapping[str, Any]
ReadingTask = Callable[[Log, ReadingRequest, Sequence[str]], Iterator[Any]]


def main() -> None:
    """Answer the request on standard input, one line per answer."""
    request, *lines = map(json.loads, sys.stdin.buffer)
    log: Log = importlib.import_module(request["log"]).LOG
    printed = [text for line in lines for text in log.plain(line)]
    for answer in TASKS[request["task"]](log, request, printed):
        print(json.dumps(answer), flush=True)


def _cause(log: Log, request: ReadingRequest, lines: Sequence[str]) -> Iterator[Any]:
    finding = log.find_cause(lines, request["phase"], alive=request["alive"])
    yield asdict(finding) if finding else None


def _incident(log: Log, request: ReadingRequest, lines: Sequence[str]) -> Iterator[Any]:
    """The report first, then each file's name and text, the longest last."""
    secrets = request["secrets"]
    yield document(request["draft"], lines, secrets)
    kept = "".join(f"{line}\n" for line in lines[-LOG_LINES:])
    for name, text in {**request["texts"], "log.txt": kept}.items():
        if text:
            yield name, hide(text[-MAX_FILE_CHARACTERS:], secrets)


TASKS: Mapping[str, ReadingTask] = {"cause": _cause, "incident": _incident}
