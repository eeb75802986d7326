"""Explain a complete log of SGLang after the fact: phases, figures, the failure, advice."""

from __future__ import annotations

from caovand.engines.common.logs.whole_log import Explainer
from caovand.engines.sglang.healing.advice import advise
from caovand.engines.sglang.log.cause import find_cause
from caovand.engines.sglang.log.line import take_apart
from caovand.engines.sglang.log.phases import read
from caovand.engines.sglang.log.signatures import HARMLESS

explain = Explainer(
    begins=lambda line: take_apart(line).message.startswith("server_args="),
    at_s=lambda line: take_apart(line).at_s,
    read=read,
    harmless=HARMLESS,
    find_cause=find_cause,
    advise=advise,
)
