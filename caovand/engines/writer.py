"""Identify who wrote a log, by lines that only one program prints, else by a known failure text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from caovand.core.engine.log import Explanation
from caovand.core.engine.record import Engine
from caovand.core.healing.answer import LEAD, FailureAnswer
from caovand.core.healing.failure import Failure, Finding
from caovand.core.plan import Plan
from caovand.core.secrets import hide
from caovand.engines import registry
from caovand.engines.common.healing.advice import sentences
from caovand.engines.common.healing.advice_texts import GENERAL
from caovand.engines.common.healing.answer import answer_of
from caovand.engines.common.logs import refusals
from caovand.engines.common.logs.elsewhere import with_system
from caovand.engines.common.logs.excerpts import is_alarming, pieces
from caovand.engines.common.logs.failed_requests import of_request
from caovand.engines.common.logs.hit import MAX_TEXT
from caovand.engines.common.logs.named import ENGINES_TOO, engine_named, is_own, title_outside
from caovand.engines.common.logs.rows import (
    building,
    exits,
    ggml,
    host,
    kernel,
    python,
    raised,
    toolchain,
)
from caovand.engines.common.logs.rows.kernel import find_in_machine, is_of_kernel
from caovand.engines.common.logs.rows.python import ANY_PROGRAM
from caovand.engines.common.logs.unretrieved import unretrieved
from caovand.engines.common.logs.whole_log import HIDDEN, lines_of, without_secrets
from caovand.engines.common.logs.wrapping import join_wrapped, without_label, without_markup

_UNIT = re.compile(
    r"(?:.{0,80}? )?([a-z]{1,20})(?:\.[a-z]{1,20})?(?:-\d{1,3})?(?:\[\d{1,10}\]: | {1,40}\| )"
)
"""journald's unit, or a container's name, in front of a line."""
_PARTS = re.compile(
    r".{0,300}?(?:/(?P<vllm>vllm)/(?:v1|engine|entrypoints|model_executor|worker|executor"
    r"|distributed)/|/(?P<sglang>sglang)/(?:srt|multimodal_gen)/"
    r"|:\d{1,5}/(?P<route>get_model_info|health_generate|get_server_info)\b)"
)
"""Engines' own files and routes, which identify the engine if nothing else does."""
_CATCH_ALL: frozenset[Failure] = frozenset({"unknown", "engine-died"})
"""Failures that an engine reports for unknown exceptions, which identify no engine."""
_DECIDED = 2
MAX_LEAD = 5000
"""Lines before the end of a process, or of the log, that may name its reason."""
_ANY_PROGRAM = frozenset(row.id for row in (*ANY_PROGRAM, *raised.ROWS))
_COMMON = frozenset(
    row.id
    for row in (
        *host.ROWS,
        *building.ROWS,
        *toolchain.ROWS,
        *exits.ROWS,
        *python.ROWS,
        *python.HUB,
        *kernel.ROWS,
        *raised.ROWS,
    )
) | {"disk.full", "disk.error", "ggml.template", "ggml.template.items"}
"""Rows that match output of any engine's libraries: they identify no engine."""
_REFUSED: Mapping[str, Failure] = {row.id: row.failure for row in refusals.ROWS}
"""Rows of refused requests: unknown to the daemon, when an engine that served ends; not here."""
_SHARED = frozenset(row.id for row in (*ggml.ROWS, *ggml.FILE))
"""Rows of ggml's loader, which llama.cpp prints and Ollama passes on."""
_EXITS = frozenset(row.id for row in exits.ROWS)


@dataclass(frozen=True)
class LogWriter:
    """The writer of a log: `name` is an engine's, "host" for the kernel, "" if it is uncertain."""

    name: str
    title: str

    @property
    def engine(self) -> Engine | None:
        """The engine; None for the kernel, or if it is uncertain."""
        return registry.engine_of(self.name) if self.name in registry.MODULES else None


HOST = LogWriter("host", "Kernel and driver")
UNCERTAIN = LogWriter("", "Engine not certain")


def engines() -> str:
    """The engines whose logs can be explained, for people."""
    return ", ".join(registry.engine_of(name).title for name in registry.MODULES)


def starts() -> tuple[str, ...]:
    """Texts in the first lines of a start, of every engine."""
    engines = map(registry.engine_of, registry.MODULES)
    return tuple(text for engine in engines for text in engine.log.begins)


def explain_log(text: str) -> tuple[LogWriter, Explanation] | None:
    """Who wrote a log, and its explanation; None if it is neither an engine's nor the kernel's."""
    text = join_wrapped(without_label(without_markup(text)))
    lines = lines_of(text)
    if exception := python.raised_text(lines) or unretrieved(lines):
        text = f"{text.rstrip()}\n{exception}\n"
        lines = lines_of(text)
    found = _whole(text, lines)
    if found and (engine := found[0].engine):
        found = found[0], of_request(found[1], lines, engine.explain)
    found = _with_name(found, text, lines)
    found = _with_lead(_cut_short(found, lines), lines)
    return found and (found[0], with_system(found[1], found[0].name or engine_named(lines), lines))


def answer_for(writer: LogWriter, finding: Finding, plan: Plan | None) -> FailureAnswer:
    """What a finding means; where the engine is uncertain, what is true of every engine."""
    found = answer_of(writer.engine, finding, plan)
    if found.heals != "depends":
        return found
    every = [answer_of(registry.engine_of(name), finding) for name in registry.MODULES]
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
    return writer, replace(explanation, finding=finding, advice=_advice_for_any(finding))


def _whole(text: str, lines: Sequence[str]) -> tuple[LogWriter, Explanation] | None:
    """Explain a text, of these lines, as printed; else split at the words that begin a message."""
    found = _explained(text, lines)
    if (before := _certainty(found)) == _DECIDED:
        return found
    cut, numbers = pieces(text)
    again = _explained(cut, lines_of(cut)) if cut else None
    if _certainty(again) < _DECIDED:
        again = max(_as_errors(cut, found), again, key=_certainty)
    if again is None or _certainty(again) <= before:
        return found
    writer, explanation = again
    finding = explanation.finding
    assert finding is not None
    finding = replace(finding, line=numbers[finding.line - 1])
    writer = found[0] if found and not writer.name else writer
    return writer, replace(explanation, finding=finding)


def _as_errors(
    text: str, found: tuple[LogWriter, Explanation] | None
) -> tuple[LogWriter, Explanation] | None:
    """Read lines that look like errors as the engine logger's own, whatever program quotes them."""
    known = found[0].engine if found else None
    every = [known] if known else [registry.engine_of(name) for name in registry.MODULES]
    words = []
    for engine in every:
        if (error := engine.log.error) is not None:
            lines = (error(line) if is_alarming(line) else line for line in text.split("\n"))
            words.append((engine, engine.explain("\n".join(lines))))
    if known is None:
        return _by_its_words([one for one in words if not _is_of_family(one[1].finding)])
    read = _by_its_words(words)
    return read and (read[0], replace(read[1], advice=words[0][1].advice))


def _is_of_family(finding: Finding | None) -> bool:
    """Whether only the class of a text is known: any program may print something similar."""
    return finding is not None and "family." in finding.signature


def _certainty(found: tuple[LogWriter, Explanation] | None) -> int:
    """How much a log says about a failure, read as printed: nothing, an end, its cause."""
    if found is None or found[1].finding is None:
        return _DECIDED if found is not None and found[1].reached == "serving" else 0
    finding = found[1].finding
    if finding.failure == "unknown" or finding.signature == raised.REFUSED_VALUE.id:
        return 0
    return 1 if finding.failure in _CATCH_ALL else _DECIDED


def _explained(text: str, lines: Sequence[str]) -> tuple[LogWriter, Explanation] | None:
    engines = {name: registry.engine_of(name) for name in registry.MODULES}
    counts = Counter(_written_by(engines, lines, text.split("\n")) or _named_in(lines))
    if counts:
        engine = engines[max(counts, key=lambda name: counts[name])]
        return LogWriter(engine.name, engine.title), engine.explain(text)
    of_kernel = (HOST, _of_kernel(lines)) if any(map(is_of_kernel, lines)) else None
    if of_kernel and of_kernel[1].finding is not None:
        return of_kernel
    words = [(engine, engine.explain(text)) for engine in engines.values()]
    return _by_its_words(words) or of_kernel


def _written_by(
    engines: Mapping[str, Engine], lines: Sequence[str], printed: Sequence[str]
) -> list[str]:
    """The engine of each line that has one; a runner's lines belong to its server.

    If lines identify no engine, or only an embedded one, the unit names decide.
    """
    found = [
        name
        for line in lines
        for name, engine in engines.items()
        if engine.log.fingerprint.match(line)
    ]
    if {engines[name].log.embeds for name in engines} >= set(found):
        units = (_UNIT.match(line[:200]) for line in printed)
        found += [unit[1] for unit in units if unit and unit[1] in engines]
    servers = {e.log.embeds: name for name, e in engines.items() if e.log.embeds and name in found}
    return [servers.get(name, name) for name in found]


def _named_in(lines: Sequence[str]) -> list[str]:
    parts = (_PARTS.match(line) for line in lines)
    return ["vllm" if part["vllm"] else "sglang" for part in parts if part]


def _of_kernel(lines: Sequence[str]) -> Explanation:
    finding = find_in_machine(lines)
    if finding is None:
        return Explanation(None, (), "", None, (), {}, {}, {})
    finding = without_secrets(finding, finding.line)
    return Explanation(None, (), "", finding, _advice_for_any(finding), {}, {}, {})


def _advice_for_any(finding: Finding) -> tuple[str, ...]:
    """Advice in general terms, for any writer of the log."""
    return tuple(sentences(finding, finding.captures, {}, GENERAL))


def _by_its_words(
    found: Sequence[tuple[Engine, Explanation]],
) -> tuple[LogWriter, Explanation] | None:
    """Explain by a cause that only one engine knows, or in general terms if several know it."""
    causes = [(engine, e) for engine, e in found if e.finding is not None]
    named = [one for one in causes if one[1].finding.failure not in _CATCH_ALL]  # type: ignore[union-attr]
    named = [one for one in named if one[1].finding.signature not in _ANY_PROGRAM] or named  # type: ignore[union-attr]
    named = [one for one in named if one[1].finding.signature not in _EXITS] or named  # type: ignore[union-attr]
    if len(named) == 1 and _identifies(*named[0]):
        (engine, explanation), *_ = named
        return LogWriter(engine.name, engine.title), explanation
    if not causes:
        return None
    ended = [one for one in causes if one[1].finding.signature in _EXITS]  # type: ignore[union-attr]
    causes = causes if named else ended or causes
    explanation = (named or causes)[0][1]
    finding = explanation.finding
    assert finding is not None
    if not named and not _all_died(causes) and finding.signature not in _COMMON:
        finding = replace(finding, failure="unknown", signature="", captures={})
    advice = explanation.advice if is_own(finding.signature) else _advice_for_any(finding)
    finding = replace(finding, phase="")
    return UNCERTAIN, Explanation(None, (), "", finding, advice, {}, {}, {})


def _identifies(engine: Engine, explanation: Explanation) -> bool:
    """Whether the text is one that only this engine's programs print."""
    finding = explanation.finding
    assert finding is not None
    kind = engine.log.kinds.get(finding.signature)
    return (
        kind in ("cause", "generic")
        and finding.signature not in _COMMON | _ANY_PROGRAM | _SHARED
        and not _is_of_family(finding)
    )


def _all_died(causes: Sequence[tuple[Engine, Explanation]]) -> bool:
    """Whether every engine that knows the text considers it the end of a process."""
    return all(e.finding is not None and e.finding.failure == "engine-died" for _, e in causes)
