"""What runs in the process that `reading` starts; a restart waits for its imports."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from caovand.core.incident import document
from caovand.core.secrets import hide
from caovand.engines.vllm.cause import find_cause
from caovand.engines.vllm.json_lines import plain

LOG_LINES = 2000
FILE_CHARACTERS = 8 << 20

Request = Mapping[str, Any]
Task = Callable[[Request, Sequence[str]], Iterator[Any]]


def main() -> None:
    """Answer the request on standard input, a line an answer."""
    request, *lines = map(json.loads, sys.stdin.buffer)
    printed = [text for line in lines for text in plain(line)]
    for answer in TASKS[request["task"]](request, printed):
        print(json.dumps(answer), flush=True)


def _cause(request: Request, lines: Sequence[str]) -> Iterator[Any]:
    finding = find_cause(lines, request["phase"], alive=request["alive"])
    yield asdict(finding) if finding else None


def _incident(request: Request, lines: Sequence[str]) -> Iterator[Any]:
    """The report first, then name and text of each file, the longest last."""
    secrets = request["secrets"]
    yield document(request["draft"], lines, secrets)
    log = "".join(f"{line}\n" for line in lines[-LOG_LINES:])
    for name, text in {**request["texts"], "log.txt": log}.items():
        if text:
            yield name, hide(text[-FILE_CHARACTERS:], secrets)


TASKS: Mapping[str, Task] = {"cause": _cause, "incident": _incident}
