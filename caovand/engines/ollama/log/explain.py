"""Explains a whole log of Ollama after the fact: phases, figures, the failure, advice."""

from __future__ import annotations

from caovand.engines.common.whole_log import Explainer
from caovand.engines.ollama.healing.advice import advise
from caovand.engines.ollama.log.cause import find_cause
from caovand.engines.ollama.log.line import take_apart
from caovand.engines.ollama.log.phases import read
from caovand.engines.ollama.log.signatures import HARMLESS

_BEGIN = "server config"
"""In its first line; releases before 0.6.7 write that line in another form."""


def _begins(line: str) -> bool:
    return _BEGIN in line[:100] and (line.startswith("time=") or " routes.go:" in line[:40])


explain = Explainer(
    begins=_begins,
    at_s=lambda line: take_apart(line).at_s,
    read=read,
    harmless=HARMLESS,
    find_cause=find_cause,
    advise=advise,
    last="load",
)
