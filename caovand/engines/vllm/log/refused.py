"""Find why vLLM refused a request, for a log that shows nothing worse: the server continues."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from caovand.core.healing.failure import Finding
from caovand.engines.common.logs.hit import MAX_TEXT
from caovand.engines.common.logs.refusals import REFUSED, REFUSED_REQUEST
from caovand.engines.common.logs.signature import MAX_LINE, Signature
from caovand.engines.vllm.log.line import VllmLine, take_apart
from caovand.engines.vllm.log.signatures import is_exception, match_text

_ANSWERING = re.compile(r"(?:.{1,60}/)?serving(?:_\w{1,30})?\.py$")
"""Files whose code answers requests."""
_STATUS = re.compile(r".{0,60}\"[A-Z]{3,7} /\S{0,300} HTTP/[\d.]{1,3}\" (?P<status>4\d\d)\b")
_NEAR = 3  # lines between an exception without a prefix and the answer


def refused_request(lines: Sequence[str]) -> Finding | None:
    """The finding of the first refused request whose reason the log has; None without one.

    An exception that no row knows counts only if the status of the answer follows.
    """
    announced: Finding | None = None
    unknown: tuple[int, str] | None = None
    for index, line in enumerate(lines):
        parts = take_apart(line)
        message = parts.message[:MAX_LINE]
        if parts.uvicorn and (answered := _STATUS.match(message)):
            if announced or unknown:
                return announced or _finding(unknown, REFUSED, answered.groupdict())
            continue
        of_serving = is_of_serving(parts)
        if unknown and not of_serving and index - unknown[0] > _NEAR:
            unknown = None
        if message[:1] == " " or not (of_serving or (not parts.level and is_exception(message))):
            continue
        match = match_text(message)
        if match and of_serving and asks_wrongly(match[0]):
            known = _finding((index, message), match[0].id, match[1])
            if is_exception(message):
                return known
            announced = announced or known
        elif is_exception(message):
            unknown = (index, message) if match is None else None
    return announced


def is_of_serving(parts: VllmLine) -> bool:
    """Whether the code that answers requests logged this error."""
    return parts.level == "ERROR" and bool(_ANSWERING.match(parts.source))


def asks_wrongly(row: Signature) -> bool:
    """Whether a row means that the request is refused."""
    return row.means("resolve") == "bad-arguments"


def _finding(
    place: tuple[int, str] | None, signature: str, captures: Mapping[str, str]
) -> Finding | None:
    if place is None:
        return None
    index, text = place
    captures = {REFUSED_REQUEST: "yes", **captures}
    return Finding("bad-arguments", text[:MAX_TEXT], "serving", captures, signature, index + 1)
