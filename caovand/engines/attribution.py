"""Attribute a log to an engine: by lines that only one prints, else by a known failure text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from caovand.core.engine.log import Explanation
from caovand.core.engine.record import Engine
from caovand.core.healing.failure import Failure, Finding
from caovand.engines import registry
from caovand.engines.common.healing.advice import sentences, without_changes
from caovand.engines.common.healing.advice_texts import GENERAL
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
from caovand.engines.common.logs.whole_log import lines_of, without_secrets
from caovand.engines.explaining.answer import is_refusal
from caovand.engines.explaining.excerpts import is_alarming, is_harmless, messages, pieces
from caovand.engines.explaining.named import is_own

_UNIT = re.compile(
    r"(?:.{0,80}? )?([a-z]{1,20})(?:\.[a-z]{1,20})?(?:-\d{1,3})?(?:\[\d{1,10}\]: | {1,40}\| )"
)
"""journald's unit, or a container's name, in front of a line."""
_CATCH_ALL: frozenset[Failure] = frozenset({"unknown", "engine-died"})
"""Failures that an engine reports for unknown exceptions, which identify no engine."""
_DECIDED = 2
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


def attribute(text: str, lines: Sequence[str]) -> tuple[LogWriter, Explanation] | None:
    """Explain a text, of these lines, as printed; else split at the words that begin a message;
    else by what follows a label, or is quoted."""
    found = _explained(text, lines)
    if (before := _certainty(found)) == _DECIDED:
        return found
    cut, numbers = pieces(text)
    again = _explained(cut, lines_of(cut)) if cut else None
    if _certainty(again) < _DECIDED:
        again = max(_as_errors(cut, found, is_alarming), again, key=_certainty)
    if _certainty(again) < _DECIDED:
        bare, of_bare = messages(text)
        if decisive := _of_messages(bare, found):
            again, numbers = decisive, of_bare
    if again is None or _certainty(again) <= before:
        return found
    writer, explanation = again
    if (finding := explanation.finding) is None:
        return again
    finding = replace(finding, line=numbers[finding.line - 1])
    writer = found[0] if found and not writer.name else writer
    return writer, replace(explanation, finding=finding)


def _of_messages(
    text: str, found: tuple[LogWriter, Explanation] | None
) -> tuple[LogWriter, Explanation] | None:
    """Explain bare messages, one per line: only by a text that names a cause or a refusal."""
    for read in (_explained(text, lines_of(text)), _as_errors(text, found, bool)):
        finding = read[1].finding if read else None
        if read and finding and _is_specific(finding) and _is_decisive(read[0], finding):
            return read
    return None


def _is_decisive(writer: LogWriter, finding: Finding) -> bool:
    if finding.signature in _ANY_PROGRAM or finding.failure in _CATCH_ALL:
        return False
    every = [writer.engine] if writer.engine else registry.engines()
    kinds = {engine.log.kinds.get(finding.signature) for engine in every}
    return "cause" in kinds or is_refusal(finding, registry.engines())


def _as_errors(
    text: str, found: tuple[LogWriter, Explanation] | None, is_error: Callable[[str], bool]
) -> tuple[LogWriter, Explanation] | None:
    """Read lines that are errors as the engine logger's own, whatever program quotes them."""
    known = found[0].engine if found else None
    every = [known] if known else registry.engines()
    words = []
    for engine in every:
        if (error := engine.log.error) is not None:
            lines = (
                error(line) if is_error(line) and not is_harmless(line) else line
                for line in text.split("\n")
            )
            words.append((engine, engine.explain("\n".join(lines))))
    if known is None:
        return _by_its_words([one for one in words if _is_specific(one[1].finding)])
    read = _by_its_words(words)
    return read and (read[0], replace(read[1], advice=words[0][1].advice))


def _is_of_family(finding: Finding | None) -> bool:
    """Whether only the class of a text is known: any program may print something similar."""
    return finding is not None and "family." in finding.signature


def _is_specific(finding: Finding | None) -> bool:
    return finding is not None and finding.failure != "unknown" and not _is_of_family(finding)


def _certainty(found: tuple[LogWriter, Explanation] | None) -> int:
    """How much a log reveals about a failure, read as printed: nothing, an exit, its cause."""
    if found is None:
        return 0
    if found[1].finding is None:
        return _DECIDED if found[1].reached == "serving" else 0
    finding = found[1].finding
    if finding.failure == "unknown" or finding.signature == raised.REFUSED_VALUE.id:
        return 0
    vague = finding.signature in _ANY_PROGRAM or _is_of_family(finding)
    return 1 if finding.failure in _CATCH_ALL or (vague and not found[0].name) else _DECIDED


def _explained(text: str, lines: Sequence[str]) -> tuple[LogWriter, Explanation] | None:
    engines = {engine.name: engine for engine in registry.engines()}
    counts = Counter(_written_by(engines, lines, text.split("\n")) or _owners_of_sources(lines))
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


def _owners_of_sources(lines: Sequence[str]) -> list[str]:
    """The engine of each line that has an engine's file or route; of several, the first."""
    patterns = [(e.name, e.log.sources) for e in registry.engines() if e.log.sources]
    found = (
        [(part.end(), name) for name, sources in patterns if (part := sources.match(line))]
        for line in lines
    )
    return [min(parts)[1] for parts in found if parts]


def _of_kernel(lines: Sequence[str]) -> Explanation:
    finding = find_in_machine(lines)
    if finding is None:
        return Explanation(None, (), "", None, (), {}, {}, {})
    finding = without_secrets(finding, finding.line)
    return Explanation(None, (), "", finding, advice_for_any(finding), {}, {}, {})


def advice_for_any(finding: Finding) -> tuple[str, ...]:
    """Advice in general terms, for any writer of the log."""
    return tuple(sentences(finding, finding.captures, {}, GENERAL))


def _by_its_words(
    found: Sequence[tuple[Engine, Explanation]],
) -> tuple[LogWriter, Explanation] | None:
    """Explain by a cause that only one engine has, or in general terms if several have it."""
    causes = [(engine, e, e.finding) for engine, e in found if e.finding is not None]
    named = [cause for cause in causes if cause[2].failure not in _CATCH_ALL]
    named = [cause for cause in named if cause[2].signature not in _ANY_PROGRAM] or named
    named = [cause for cause in named if cause[2].signature not in _EXITS] or named
    if len(named) == 1 and _identifies(named[0][0], named[0][2]):
        engine, explanation, _ = named[0]
        return LogWriter(engine.name, engine.title), explanation
    if not causes:
        return None
    ended = [cause for cause in causes if cause[2].signature in _EXITS]
    causes = causes if named else ended or causes
    _, explanation, finding = (named or causes)[0]
    all_died = all(cause.failure == "engine-died" for _, _, cause in causes)
    if not named and not all_died and finding.signature not in _COMMON:
        finding = replace(finding, failure="unknown", signature="", captures={})
    own = without_changes(explanation.advice) if is_own(finding.signature) else ()
    advice = own or advice_for_any(finding)
    finding = replace(finding, phase="")
    return UNCERTAIN, Explanation(None, (), "", finding, advice, {}, {}, {})


def _identifies(engine: Engine, finding: Finding) -> bool:
    """Whether the text is one that only this engine's programs print."""
    kind = engine.log.kinds.get(finding.signature)
    return (
        kind in ("cause", "generic")
        and finding.signature not in _COMMON | _ANY_PROGRAM | _SHARED
        and not _is_of_family(finding)
    )
