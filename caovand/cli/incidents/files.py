"""Fetch an incident's files from the daemon, in pieces.

The daemon may be another user's, and root may be the client: no file name may lead out of a folder,
and every size is limited.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from caovand.cli.common.client import DaemonClient
from caovand.cli.common.errors import CommandError, Exit
from caovand.core.reporting.incident_text import REPORT

MAX_FILES = 256
MAX_PIECES = 4096
MAX_BYTES = 64 << 20  # per incident; the daemon keeps less than this for all of them together
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}", re.ASCII)


def fetch(client: DaemonClient, number: int, name: str) -> tuple[Mapping[str, int], bytes]:
    """An incident's file, and the names and sizes of all its files; raises CommandError."""
    data = bytearray()
    for _ in range(MAX_PIECES):
        answer = client.ask("incident", number=number, file=name, offset=len(data))
        files, piece, following = _validate(answer, number)
        data += piece
        if following is None:
            return files, bytes(data)
        if following != len(data) or not piece:
            raise _malformed_error(
                number, f"{name} continues at byte {following}, but {len(data)} bytes were received"
            )
        _check_size(number, len(data))
    raise _malformed_error(number, f"{name} has more than {MAX_PIECES} pieces")


def fetch_all(client: DaemonClient, number: int) -> dict[str, bytes]:
    """All files of an incident by name, starting with its report; raises CommandError."""
    names, report = fetch(client, number, REPORT)
    contents = {REPORT: report}
    for name in names:
        if name != REPORT:
            contents[name] = fetch(client, number, name)[1]
            _check_size(number, sum(map(len, contents.values())))
    return contents


def _check_size(number: int, size: int) -> None:
    if size > MAX_BYTES:
        raise _malformed_error(number, f"it has more than {MAX_BYTES >> 20} MiB")


def _validate(answer: Any, number: int) -> tuple[Mapping[str, int], bytes, int | None]:
    """Names and sizes, bytes and next offset of a validated reply."""
    try:
        files, following = dict(answer["files"]), answer["next"]
        piece = base64.b64decode(answer["data"], validate=True)
    except (LookupError, TypeError, ValueError):
        raise _malformed_error(number, "an answer is malformed") from None
    if not (following is None or type(following) is int):
        raise _malformed_error(number, "an answer is malformed")
    if len(files) > MAX_FILES:
        raise _malformed_error(number, f"it has {len(files)} files, more than {MAX_FILES}")
    for name in files:
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise _malformed_error(number, f"{str(name)[:100]!r} is not a file name")
    return files, piece, following


def _malformed_error(number: int, fact: str) -> CommandError:
    return CommandError(
        Exit.FAILED,
        f"cannot read incident {number}: {fact}",
        "check that the daemon and caovanctl are the same release (`caovanctl version`)",
    )
