"""Explain a log whoever wrote it: its engine, the failure, and what helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from caovand.core.engine.log import Explanation
from caovand.core.engine.record import Engine
from caovand.core.healing.answer import LEAD, FailureAnswer
from caovand.core.healing.failure import Failure, Finding
from caovand.core.plan import Plan
from caovand.core.secrets import hide
from caovand.engines import registry
from caovand.engines.attribution import UNCERTAIN, LogWriter, advice_for_any, attribute
from caovand.engines.common.logs import refusals
from caovand.engines.common.logs.hit import MAX_TEXT
from caovand.engines.common.logs.rows import checkpoint, python
from caovand.engines.common.logs.whole_log import HIDDEN, lines_of, without_secrets
from caovand.engines.common.logs.wrapping import join_wrapped, without_label, without_markup
from caovand.engines.explaining.answer import answer_of
from caovand.engines.explaining.answered import of_answers
from caovand.engines.explaining.excerpts import is_alarming
from caovand.engines.explaining.failed_requests import of_request
from caovand.engines.explaining.named import ENGINES_TOO, engine_named, title_outside
from caovand.engines.explaining.other_systems import with_system
from caovand.engines.explaining.unretrieved import unretrieved

MAX_LEAD = 5000
"""Lines before the end of a process, or of the log, that may name its reason."""
_REFUSED: Mapping[str, Failure] = {row.id: row.failure for row in refusals.ROWS}
"""Rows of refused requests: unknown to the daemon, when an engine that served ends; not here."""


def engines() -> str:
    """The engines whose logs can be explained, for people."""
    return ", ".join(engine.title for engine in registry.engines())


def starts() -> tuple[str, ...]:
    """Texts in the first lines of a start, of every engine."""
    return tuple(text for engine in registry.engines() for text in engine.log.begins)


def explain_log(text: str) -> tuple[LogWriter, Explanation] | None:
    """Who wrote a log, and its explanation; None if it is neither an engine's nor the kernel's."""
    text = join_wrapped(without_label(without_markup(text)))
    lines = lines_of(text)
    if exception := python.raised_text(lines) or unretrieved(lines):
        text = f"{text.rstrip()}\n{exception}\n"
        lines = lines_of(text)
    found = attribute(text, lines)
    if found and (engine := found[0].engine):
        explanation = of_request(found[1], lines, engine.explain)
        found = found[0], of_answers(explanation, lines, advice_for_any)
    found = _with_quantizer(_with_name(found, text, lines), lines)
    found = _with_lead(_cut_short(found, lines), lines)
    return found and (found[0], with_system(found[1], found[0].name or engine_named(lines), lines))


def answer_for(writer: LogWriter, finding: Finding, plan: Plan | None) -> FailureAnswer:
    """What a finding means; where the engine is uncertain, what is true of every engine."""
    found = answer_of(writer.engine, finding, plan)
    if found.heals != "depends":
        return found
    every = [answer_of(engine, finding) for engine in registry.engines()]
    same = all((one.heals, one.how) == (every[0].heals, every[0].how) for one in every)
    return replace(found, heals=every[0].heals, how=every[0].how) if same else found


def _with_name(
    found: tuple[LogWriter, Explanation] | None, text: str, lines: Sequence[str]
) -> tuple[LogWriter, Explanation] | None:
    """An explanation of an uncertain writer, by the one engine that the log names, if any."""
    if found is None or found[0] is not UNCERTAIN or found[1].finding is None:
        return found
    finding = found[1].finding
    outside = title_outside(finding.signature)
    name = engine_named(lines) if outside in ("", ENGINES_TOO) else ""
    if name and finding.failure != "unknown":
        engine = registry.engine_of(name)
        own = engine.explain(text)
        if own.finding is None or _is_same(own.finding, finding):
            return LogWriter(engine.name, engine.title), own if own.finding else found[1]
    return LogWriter("", outside or found[0].title), found[1]


def _with_quantizer(
    found: tuple[LogWriter, Explanation] | None, lines: Sequence[str]
) -> tuple[LogWriter, Explanation] | None:
    """An explanation of a tensor that does not fit, by what the checkpoint's name says of it."""
    if found is None or found[1].finding is None:
        return found
    finding = checkpoint.of_bitsandbytes(found[1].finding, lines)
    if finding is found[1].finding:
        return found
    return found[0], replace(found[1], finding=finding, advice=advice_for_any(finding))


def _is_same(one: Finding, other: Finding) -> bool:
    return (one.signature, one.failure, one.line) == (other.signature, other.failure, other.line)


def _with_lead(
    found: tuple[LogWriter, Explanation] | None, lines: Sequence[str]
) -> tuple[LogWriter, Explanation] | None:
    """An explanation without a cause, extended by the nearest line that sounds like one."""
    if found is None:
        return found
    writer, explanation = found
    if (refused := explanation.finding) and refused.signature in _REFUSED:
        return writer, replace(explanation, finding=_with_request_failure(refused))
    if explanation.reached == "serving":
        return found
    finding = explanation.finding
    if finding is not None and not _shows_an_end(writer.engine, finding):
        return found
    end = finding.line - 1 if finding else len(lines)
    lead = next((n for n in range(end - 1, max(end - MAX_LEAD, 0) - 1, -1)
                 if lines[n][:1].strip() and is_alarming(lines[n])), None)  # fmt: skip
    if lead is None:
        return found
    heard = hide(lines[lead].strip()[:MAX_TEXT], mark=HIDDEN)
    if finding is None:
        alone = writer.engine.explain(lines[lead]) if writer.engine else None
        if alone and alone.finding and alone.finding.signature in _REFUSED:
            refused = replace(_with_request_failure(alone.finding), line=lead + 1)
            return writer, replace(explanation, finding=refused, advice=alone.advice)
        advice = f"Line {lead + 1} sounds like an error, but no known failure matches it: {heard}"
        return writer, replace(explanation, advice=(*explanation.advice, advice))
    captures = {**finding.captures, LEAD: f"line {lead + 1}: {heard}"}
    return writer, replace(explanation, finding=replace(finding, captures=captures))


def _with_request_failure(refused: Finding) -> Finding:
    return replace(refused, failure=_REFUSED[refused.signature])


def _shows_an_end(engine: Engine | None, finding: Finding) -> bool:
    kind = engine.log.kinds.get(finding.signature) if engine else None
    ends = kind in ("consequence", "wrapper") and finding.failure != "unknown"
    return ends and finding.signature not in _REFUSED


def _cut_short(
    found: tuple[LogWriter, Explanation] | None, lines: Sequence[str]
) -> tuple[LogWriter, Explanation] | None:
    """The explanation of a log without a finding; a note if its end cuts off a traceback."""
    if found is None or found[1].finding is not None or found[1].reached == "serving":
        return found
    writer, explanation = found
    last = python.cut_at(lines)
    if last is None or writer.engine is None:
        return found
    finding = Finding("unknown", lines[last].strip(), explanation.reached, {}, "traceback.cut")
    finding = without_secrets(finding, last + 1)
    return writer, replace(explanation, finding=finding, advice=advice_for_any(finding))
