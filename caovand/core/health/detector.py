"""Turn observations of one child into signs: progress, a stall, a hang, death, slowness.

`observe(watch, observation, rules)` is pure; a WatchState belongs to one child. A start stalls if
it shows no mark, no progress bar and no new kind of line for the phase's time limit. While serving,
a hang is *suspected* when work is pending and no counter moves, and *confirmed* when that lasts
`hang_s` and a test completion gets no answer. The test costs only one token, so it is sent early;
after a false alarm, the next early test waits an hour. `/health` is trusted only when it reports a
dead engine: it can answer while the thread that decodes and counts hangs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from caovand.core.config.schema import WatchSection
from caovand.core.healing.failure import Finding
from caovand.core.health import trends
from caovand.core.health.observation import (
    ChildExit,
    GpuSample,
    Health,
    LogLine,
    NotObserved,
    ProbeResult,
    ProgressCounters,
    WatchTick,
)
from caovand.core.health.signs import Advanced, Broken, Cleared, Noticed, Probe, Sign
from caovand.core.health.stall import stall_s
from caovand.core.health.suspicion import Suspicion

JIT_PATIENCE = 3.0  # factor on hang_s just after a kernel was compiled while serving
EARLY_SHARE = 1 / 3  # share of hang_s after which a test completion is sent
MIN_READINGS = 6  # of the counters within hang_s: two before an early test completion
DEAD_CHECKS = 2  # consecutive 503 responses: a single one may be part of an orderly shutdown
MAX_LINE_KINDS = 500  # kinds of lines remembered per start; further kinds do not count as progress

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class DetectorRules:
    """The operator's thresholds; `lookup_drafts`: drafts are looked up in the text (n-grams)."""

    watch: WatchSection = field(default_factory=WatchSection)
    lookup_drafts: bool = False


@dataclass(frozen=True)
class WatchState:
    """The state of the watch over one child. Times are monotonic seconds, None for never.

    Work has been pending without progress since `pending_since`. A `broken` child yields no more
    signs.
    """

    serving: bool = False
    broken: bool = False
    phase: str = ""
    progress: float | None = None
    detail: str = ""
    last_progress_at: float = 0.0
    kinds: frozenset[str] = frozenset()
    counters: ProgressCounters | None = None
    last_reading_at: float = 0.0
    pending_since: float | None = None
    jit_at: float | None = None
    suspicion: Suspicion = field(default_factory=Suspicion)
    dead_checks: int = 0
    throttled: Mapping[int, str] = field(default_factory=dict)
    trend: trends.Trend = field(default_factory=trends.Trend)


WatchStep = tuple[WatchState, tuple[Sign, ...]]
Observation = (
    LogLine
    | ProgressCounters
    | GpuSample
    | Health
    | ProbeResult
    | ChildExit
    | WatchTick
    | NotObserved
)


def reading_interval_s(hang_s: float) -> float:
    """The longest time between readings of the counters with which a hang is found in time."""
    return hang_s / MIN_READINGS


def begin(at: float) -> WatchState:
    """Start watching a child that has just started."""
    return WatchState(last_progress_at=at, last_reading_at=at)


def proven(watch: WatchState, at: float) -> WatchState:
    """Record that the child serves from now on."""
    return replace(watch, serving=True, last_progress_at=at, last_reading_at=at, kinds=frozenset())


def observe(watch: WatchState, observation: Observation, rules: DetectorRules) -> WatchStep:
    """Process an observation: the new watch, and the resulting signs."""
    if watch.broken:
        return watch, ()
    return _HANDLERS[type(observation)](watch, observation, rules)


# -- starting -------------------------------------------------------------------------------


def _line(watch: WatchState, line: LogLine, rules: DetectorRules) -> WatchStep:
    if watch.serving:
        jit = line.mark is not None and line.mark.jit
        return (replace(watch, jit_at=line.at) if jit else watch), ()
    if line.mark is None:
        return _new_kind(watch, line)
    mark = line.mark
    if mark.heartbeat:
        sign = Advanced(line.at, watch.phase, watch.progress, mark.detail, True)
        return watch, (sign,)
    now = replace(
        watch, phase=mark.phase or watch.phase, progress=mark.progress, detail=mark.detail
    )
    if (now.phase, now.progress, now.detail) == (watch.phase, watch.progress, watch.detail):
        return watch, ()
    sign = Advanced(line.at, now.phase, now.progress, now.detail, False)
    return replace(now, last_progress_at=line.at), (sign,)


def _new_kind(watch: WatchState, line: LogLine) -> WatchStep:
    """Treat a new kind of line as progress too, because wording changes between versions."""
    kind = _NUMBERS.sub("#", line.text[:200])
    if not kind.strip() or kind in watch.kinds or len(watch.kinds) >= MAX_LINE_KINDS:
        return watch, ()
    sign = Advanced(line.at, watch.phase, watch.progress, watch.detail, False)
    return replace(watch, kinds=watch.kinds | {kind}, last_progress_at=line.at), (sign,)


def _stalled(watch: WatchState, at: float, rules: DetectorRules) -> WatchStep:
    if at - watch.last_progress_at < stall_s(watch.phase, rules.watch.stall_s):
        return watch, ()
    phase = watch.phase or "launch"
    text = f"no progress in phase {phase} for {at - watch.last_progress_at:.0f} s"
    if watch.detail:
        text += f"; last: {watch.detail}"
    return _break(watch, at, Finding("start-stall", text, phase))


# -- serving --------------------------------------------------------------------------------


def _counters(watch: WatchState, now: ProgressCounters, rules: DetectorRules) -> WatchStep:
    if not watch.serving:
        return watch, ()
    before = watch.counters
    trend, reports = trends.follow(watch.trend, now)
    watch = replace(watch, counters=now, last_reading_at=now.at, trend=trend)
    signs: tuple[Sign, ...] = tuple(Noticed(now.at, text) for text in reports)
    if collapse := trend.drafting.collapse(lookup_drafts=rules.lookup_drafts):
        broken, more = _break(watch, now.at, Finding("draft-collapse", collapse))
        return broken, signs + more
    if before is None or _vector(now) != _vector(before):
        cleared, more = _clear(watch, now.at, "the counters move")
        return replace(
            cleared, pending_since=None, last_progress_at=now.at, dead_checks=0
        ), signs + more
    if watch.pending_since is None and (_pending(now) > 0 or _clients_gave_up(before, now)):
        watch = replace(watch, pending_since=before.at if _pending(before) > 0 else now.at)
    watch, more = _suspect(watch, now.at, rules)
    return watch, signs + more


def _vector(progress: ProgressCounters) -> tuple[float, ...]:
    """Counters that move while the engine works; during a long prefill only KV cache use moves."""
    return (
        progress.generation_tokens,
        progress.prompt_tokens,
        progress.requests_finished,
        progress.iterations,
        progress.kv_cache_usage,
    )


def _pending(progress: ProgressCounters) -> float:
    """Requests in progress. vLLM's own gauge stays 0 if the first step after idling hangs."""
    return progress.running + progress.waiting if progress.pending is None else progress.pending


def _clients_gave_up(before: ProgressCounters, now: ProgressCounters) -> bool:
    """Whether requests ended but none finished: clients gave up, possibly between two readings."""
    gone = _pending(now) < _pending(before) or now.requests_ended > before.requests_ended
    return gone and now.requests_finished == before.requests_finished


def _suspect(watch: WatchState, at: float, rules: DetectorRules) -> WatchStep:
    """Suspect a hang when due, and confirm one whose probe went unanswered."""
    if watch.suspicion.since is not None:
        if at < watch.suspicion.answer_by:
            return watch, ()
        return _hung(watch, at, "the test completion got no answer")
    silent_s = at - watch.last_reading_at
    if silent_s >= rules.watch.hang_s:
        reason = f"the engine has not reported its counters for {silent_s:.0f} s"
        return _probe(watch, at, rules, reason, at)
    if watch.pending_since is None:
        return watch, ()
    since, patience_s = watch.pending_since, rules.watch.hang_s
    early = watch.suspicion.allows_early_test(since, at)
    ask_s = patience_s * EARLY_SHARE if early else patience_s
    if watch.jit_at is not None and at - watch.jit_at < rules.watch.hang_s * JIT_PATIENCE:
        # Kernel compilation explains the standstill: no early test.
        patience_s = ask_s = rules.watch.hang_s * JIT_PATIENCE
    if at - since < ask_s:
        return watch, ()
    reason = f"work is pending, but nothing has progressed for {at - since:.0f} s"
    return _probe(watch, at, rules, reason, since + patience_s)


def _probe(
    watch: WatchState, at: float, rules: DetectorRules, reason: str, hung_from: float
) -> WatchStep:
    """Send a test completion; its failure confirms a hang from `hung_from` on."""
    confirm_s = rules.watch.confirm_s
    timeout_s = max(confirm_s, hung_from - at)
    suspicion = watch.suspicion.begin(at, reason, hung_from, at + timeout_s + confirm_s)
    return replace(watch, suspicion=suspicion), (Probe(at, timeout_s, reason),)


def _probed(watch: WatchState, result: ProbeResult, rules: DetectorRules) -> WatchStep:
    if not watch.suspicion.probing:
        return watch, ()
    suspicion = replace(watch.suspicion, probing=False)
    watch = replace(watch, suspicion=suspicion)
    if result.answered:
        watch = replace(
            watch, pending_since=None, last_reading_at=result.at, last_progress_at=result.at
        )
        return _clear(watch, result.at, "a test completion was answered")
    if suspicion.since is None:
        reason = f"an idle engine did not answer: {result.text}"
        return _probe(watch, result.at, rules, reason, result.at)
    if result.at < suspicion.hung_from:
        return replace(watch, suspicion=suspicion.refuse(result.at)), ()
    return _hung(watch, result.at, f"a test completion failed: {result.text}")


def _hung(watch: WatchState, at: float, proof: str) -> WatchStep:
    return _break(watch, at, Finding("hang", f"{watch.suspicion.reason}; {proof}"))


def _clear(watch: WatchState, at: float, reason: str) -> WatchStep:
    suspected = watch.suspicion.since is not None
    cleared = replace(watch, suspicion=watch.suspicion.clear(at))
    return cleared, (Cleared(at, reason),) if suspected else ()


def _idle(watch: WatchState, at: float, rules: DetectorRules) -> WatchStep:
    """Test an engine that has been idle for a while."""
    after_s, now = rules.watch.idle_probe_s, watch.suspicion
    quiet = watch.pending_since is None and not now.probing and now.since is None
    if not after_s or not quiet or at - watch.last_progress_at < after_s:
        return watch, ()
    reason = f"idle for {at - watch.last_progress_at:.0f} s"
    probe = Probe(at, rules.watch.confirm_s, reason, idle=True)
    return replace(watch, suspicion=replace(now, probing=True)), (probe,)


def _health(watch: WatchState, health: Health, rules: DetectorRules) -> WatchStep:
    if not watch.serving or health.status is None:
        return watch, ()
    if health.status != 503:
        return replace(watch, dead_checks=0), ()
    watch = replace(watch, dead_checks=watch.dead_checks + 1)
    if watch.dead_checks < DEAD_CHECKS:
        return watch, ()
    return _break(watch, health.at, Finding("engine-died", "/health reports a dead engine"))


# -- always ---------------------------------------------------------------------------------


def _tick(watch: WatchState, tick: WatchTick, rules: DetectorRules) -> WatchStep:
    if not watch.serving:
        return _stalled(watch, tick.at, rules)
    watch, signs = _suspect(watch, tick.at, rules)
    if signs or watch.broken:
        return watch, signs
    return _idle(watch, tick.at, rules)


def _not_observed(watch: WatchState, event: NotObserved, rules: DetectorRules) -> WatchStep:
    """Restart every timer: an engine that we could not read is not silent."""
    suspicion = watch.suspicion.postpone(event.at + rules.watch.confirm_s)
    pending_since = None if watch.pending_since is None else event.at
    return replace(
        watch, last_reading_at=event.at, pending_since=pending_since, suspicion=suspicion
    ), ()


def _gpu(watch: WatchState, sample: GpuSample, rules: DetectorRules) -> WatchStep:
    if sample.fault:
        phase = "serving" if watch.serving else watch.phase
        finding = Finding("gpu-lost", f"GPU {sample.index}: {sample.fault}", phase)
        return _break(watch, sample.at, finding)
    before = watch.throttled.get(sample.index, "")
    if sample.throttled == before:
        return watch, ()
    watch = replace(watch, throttled={**watch.throttled, sample.index: sample.throttled})
    how = f" at {sample.temperature} °C" if sample.temperature is not None else ""
    text = (
        f"GPU {sample.index} is throttled by {sample.throttled}{how}"
        if sample.throttled
        else f"GPU {sample.index} is back at full speed"
    )
    return watch, (Noticed(sample.at, text),)


def _exit(watch: WatchState, exit: ChildExit, rules: DetectorRules) -> WatchStep:
    """Treat any exit of a wanted engine as a failure; vLLM usually exits with 0 even when it
    dies."""
    how = f"killed by signal {-exit.status}" if exit.status < 0 else f"exit status {exit.status}"
    phase = "serving" if watch.serving else watch.phase or "launch"
    return _break(watch, exit.at, Finding("engine-died", f"the engine exited: {how}", phase))


def _break(watch: WatchState, at: float, finding: Finding) -> WatchStep:
    return replace(watch, broken=True), (Broken(at, finding),)


_HANDLERS: Mapping[type, Callable[[WatchState, Any, DetectorRules], WatchStep]] = {
    LogLine: _line,
    ProgressCounters: _counters,
    Health: _health,
    ProbeResult: _probed,
    GpuSample: _gpu,
    ChildExit: _exit,
    WatchTick: _tick,
    NotObserved: _not_observed,
}
