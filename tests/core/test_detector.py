"""Transcripts of the detector: observations with times, and the resulting signs.

A script has one observation a line, `SECONDS what`; the answer has one sign a line. Counters keep
their last value: `gen=5` sets generated tokens, `p` pending, `kv` the cache's use, and so on.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.config.schema import WatchSection
from caovand.core.health import detector
from caovand.core.health.detector import (
    DetectorRules,
    WatchState,
    begin,
    observe,
    proven,
)
from caovand.core.health.observation import (
    ChildExit,
    GpuSample,
    Health,
    LogLine,
    LogMark,
    ProbeResult,
    ProgressCounters,
    WatchTick,
)
from caovand.core.health.signs import Advanced, Broken, Probe, Sign
from caovand.core.health.suspicion import CALM_S
from tests.examples import examples

WATCH = WatchSection(stall_s=600, hang_s=60, confirm_s=30)
RULES = DetectorRules(WATCH)
NOTHING = ProgressCounters(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)
COUNTERS = {
    "gen": "generation_tokens", "prompt": "prompt_tokens", "done": "requests_finished",
    "steps": "iterations", "kv": "kv_cache_usage", "run": "running", "wait": "waiting",
    "drafted": "drafted_tokens", "accepted": "accepted_tokens", "p": "pending",
    "ended": "requests_ended",
}  # fmt: skip


def seen(words: list[str], at: float, last: ProgressCounters) -> detector.Observation:
    """One observation from the words of a script line."""
    what, rest = words[0], words[1:]
    if what == "counters":
        values = dict(word.split("=") for word in rest)
        changes = {COUNTERS[k]: None if v == "?" else float(v) for k, v in values.items()}
        return replace(last, **changes, at=at)  # type: ignore[arg-type]
    if what == "mark":
        share = float(rest[1]) if len(rest) > 1 else None
        return LogLine("", at, LogMark(rest[0], rest[0], share))
    if what == "heartbeat":
        return LogLine("", at, LogMark(None, "waits", heartbeat=True))
    if what == "jit":
        return LogLine("", at, LogMark(None, "compiling k", jit=True))
    if what == "line":
        return LogLine(" ".join(rest), at)
    if what == "health":
        return Health(int(rest[0]), at)
    if what == "answer":
        return ProbeResult(True, "", at)
    if what == "no-answer":
        return ProbeResult(False, "no answer in 30 s", at)
    if what == "gpu":
        return GpuSample(0, 0, 0, None, 88, None, at, " ".join(rest) if rest[0] != "well" else "")
    if what == "gpu-fault":
        return GpuSample(0, 0, 0, None, None, None, at, fault=" ".join(rest))
    if what == "exit":
        return ChildExit(int(rest[0]), at)
    assert what == "tick", f"unknown observation {what!r}"
    return WatchTick(at)


def told(sign: Sign) -> str:
    """One sign in words."""
    name = type(sign).__name__.lower()
    if isinstance(sign, Broken):
        return f"{sign.at:g} {name} {sign.finding.failure}: {sign.finding.text}"
    if isinstance(sign, Advanced):
        share = "" if sign.progress is None else f" {sign.progress:.0%}"
        return f"{sign.at:g} {'waits' if sign.heartbeat else 'advanced'} {sign.phase}{share}"
    text = getattr(sign, "reason", "") or getattr(sign, "text", "")
    return f"{sign.at:g} {name} {text}"


def play(script: str, rules: DetectorRules = RULES, serving: bool = False) -> list[str]:
    """The signs a script gives."""
    watch: WatchState = proven(begin(0), 0) if serving else begin(0)
    last, signs = NOTHING, []
    for line in script.strip().split("\n"):
        at, *words = line.split()
        observation = seen(words, float(at), last)
        if isinstance(observation, ProgressCounters):
            last = observation
        watch, more = observe(watch, observation, rules)
        signs += [told(sign) for sign in more]
    return signs


def serve(script: str, rules: DetectorRules = RULES) -> list[str]:
    return play(script, rules, serving=True)


# -- starting -------------------------------------------------------------------------------


def test_progress_inside_a_phase_moves_the_deadline() -> None:
    assert play("""
        10 mark load
        500 mark load 0.5
        1000 mark load 1.0
        1500 tick
        1600 tick
    """) == [
        "10 advanced load",
        "500 advanced load 50%",
        "1000 advanced load 100%",
        "1600 broken start-stall: no progress in phase load for 600 s; last: load",
    ]


def test_heartbeats_are_shown_and_are_no_progress() -> None:
    assert play("""
        10 mark compile
        70 heartbeat
        130 heartbeat
        609 tick
        610 tick
    """) == [
        "10 advanced compile",
        "70 waits compile",
        "130 waits compile",
        "610 broken start-stall: no progress in phase compile for 600 s; last: compile",
    ]


def test_the_same_mark_again_is_no_progress() -> None:
    assert play("0 mark load 0.5\n599 mark load 0.5\n600 tick")[-1].startswith("600 broken start")


def test_a_line_of_a_new_kind_is_progress_and_of_a_known_kind_is_not() -> None:
    assert play("""
        10 line building kernel 1 of 9
        500 line something else
        1050 line building kernel 2 of 9
        1099 tick
    """) == ["10 advanced ", "500 advanced "]  # fmt: skip
    assert play("""
        10 line building kernel 1 of 9
        500 line building kernel 2 of 9
        610 tick
    """) == ["10 advanced ", "610 broken start-stall: no progress in phase launch for 600 s"]


# -- hanging --------------------------------------------------------------------------------


def test_a_frozen_engine_is_suspected_and_confirmed_by_a_completion_of_our_own() -> None:
    assert serve("""
        0 counters gen=5
        10 counters p=1
        29 counters
        30 counters
        69 counters
        70 no-answer
    """) == [
        "30 probe work is pending, but nothing has progressed for 20 s",
        "70 broken hang: work is pending, but nothing has progressed for 20 s; "
        "a test completion failed: no answer in 30 s",
    ]


def test_the_question_is_asked_early_and_hang_s_is_waited_for_in_all() -> None:
    watch = proven(begin(0), 0)
    for at in range(0, 25, 5):
        busy = replace(NOTHING, pending=1, at=float(at))
        watch, signs = observe(watch, busy, RULES)
    assert signs == (Probe(20.0, 40.0, "work is pending, but nothing has progressed for 20 s"),)
    # Where it takes longer to confirm than to hang, the answer has that long.
    watch, signs = observe(watch, ProbeResult(False, "", 60.0), RULES)
    assert isinstance(signs[0], Broken)


@pytest.mark.parametrize("hang_s", [5.0, 8.0, 29.0, 300.0])
def test_the_question_is_asked_after_a_third_of_any_hang_s(hang_s: float) -> None:
    rules, watch = DetectorRules(replace(WATCH, hang_s=hang_s)), proven(begin(0), 0)
    for reading in range(detector.MIN_READINGS):
        busy = replace(NOTHING, pending=1, at=reading * hang_s / detector.MIN_READINGS)
        watch, signs = observe(watch, busy, rules)
        if signs:
            break
    assert [(sign.at, type(sign)) for sign in signs] == [(hang_s / 3, Probe)]


def test_a_question_that_fails_at_once_is_asked_again_when_it_counts() -> None:
    """As of an API server that is short of something for a moment."""
    assert serve("""
        0 counters p=1
        20 counters
        21 no-answer
        40 counters
        59 counters
        60 counters
        61 no-answer
    """) == [
        "20 probe work is pending, but nothing has progressed for 20 s",
        "60 probe work is pending, but nothing has progressed for 60 s",
        "61 broken hang: work is pending, but nothing has progressed for 60 s; "
        "a test completion failed: no answer in 30 s",
    ]


def test_an_engine_that_was_only_slow_is_not_asked_early_again_for_an_hour() -> None:
    slow = "0 counters p=1\n20 counters\n25 counters gen=1\n50 counters\n84 counters"
    asked = "20 probe work is pending, but nothing has progressed for 20 s"
    assert serve(slow) == [asked, "25 cleared the counters move"]
    assert serve(slow + "\n85 counters")[2:] == [
        "85 probe work is pending, but nothing has progressed for 60 s"
    ]
    later = "\n3610 counters gen=2\n3630 counters"
    assert serve(slow + later)[2:] == [
        "3630 probe work is pending, but nothing has progressed for 20 s"
    ]
    # Also where that question had failed before the engine went on.
    vain = "0 counters p=1\n20 counters\n21 no-answer\n25 counters gen=1\n50 counters\n84 counters"
    assert serve(vain) == [asked]


def test_a_health_of_200_refutes_nothing() -> None:
    script = "0 counters\n5 counters p=1\n30 health 200\n65 counters\n66 health 200\n95 no-answer"
    assert [line.split()[1] for line in serve(script)] == ["probe", "broken"]


def test_clients_that_give_up_do_not_hide_a_hang() -> None:
    assert serve("""
        0 counters
        10 counters p=1
        20 counters p=0
        70 counters
        100 no-answer
    """) == [
        "70 probe work is pending, but nothing has progressed for 60 s",
        "100 broken hang: work is pending, but nothing has progressed for 60 s; "
        "a test completion failed: no answer in 30 s",
    ]


def test_clients_that_come_and_give_up_between_two_looks_do_not_hide_a_hang_either() -> None:
    script = "0 counters\n10 counters ended=1\n69 counters\n70 counters\n100 no-answer"
    assert [line.split()[1] for line in serve(script)] == ["probe", "broken"]
    finished = "0 counters\n10 counters ended=1 done=1 gen=9\n70 counters\n80 counters"
    assert serve(finished) == []


def test_without_load_tracking_the_engines_own_gauges_count() -> None:
    script = "0 counters p=?\n1 counters run=1 p=?\n61 counters p=?"
    assert [line.split()[1] for line in serve(script)] == ["probe"]


def test_a_long_prefill_moves_the_cache_and_is_no_hang() -> None:
    steps = "\n".join(f"{10 * n} counters p=1 run=1 kv={n / 100}" for n in range(1, 60))
    assert serve(steps) == []


def test_an_idle_engine_is_no_hang() -> None:
    assert serve("\n".join(f"{10 * n} counters" for n in range(100))) == []
    # vLLM takes a request that ends and is given up at once out of its count twice.
    assert serve("\n".join(f"{10 * n} counters p=-1" for n in range(100))) == []


def test_a_suspicion_is_cleared_when_the_counters_move_and_its_probe_forgotten() -> None:
    assert serve("""
        0 counters
        1 counters p=1
        61 counters
        65 counters gen=1
        91 no-answer
        100 counters gen=2
    """) == [
        "61 probe work is pending, but nothing has progressed for 60 s",
        "65 cleared the counters move",
    ]


def test_a_suspicion_is_cleared_by_an_answer() -> None:
    script = "0 counters\n1 counters p=1\n61 counters\n70 answer\n80 counters"
    assert serve(script)[1:] == ["70 cleared a test completion was answered"]


def test_kernels_compiled_while_serving_get_more_time() -> None:
    steps = "0 counters\n1 counters p=1\n5 jit\n"
    assert serve(steps + "61 counters\n120 counters\n179 counters") == []
    assert [line.split()[1] for line in serve(steps + "185 counters")] == ["probe"]


def test_a_silent_http_server_is_probed_too() -> None:
    assert serve("0 counters\n59 tick\n60 tick\n90 no-answer") == [
        "60 probe the engine has not reported its counters for 60 s",
        "90 broken hang: the engine has not reported its counters for 60 s; "
        "a test completion failed: no answer in 30 s",
    ]


def test_an_engine_whose_http_server_alone_answers_is_probed_too() -> None:
    """llama-server answers /health while the thread that decodes hangs, and with it /metrics."""
    assert serve(
        "1 counters\n20 health 200\n40 health 200\n60 health 200\n61 tick\n91 no-answer"
    ) == [
        "61 probe the engine has not reported its counters for 60 s",
        "91 broken hang: the engine has not reported its counters for 60 s; "
        "a test completion failed: no answer in 30 s",
    ]


def test_a_probe_that_never_ends_confirms_as_well() -> None:
    assert serve("0 counters\n60 tick\n119 tick\n120 tick")[-1] == (
        "120 broken hang: the engine has not reported its counters for 60 s; the test "
        "completion got no answer"
    )


# -- dead, lost, ended ----------------------------------------------------------------------


def test_a_health_of_503_is_believed_the_second_time() -> None:
    assert serve("1 health 503\n2 counters\n3 health 503") == []
    # The metrics page of a dead engine answers too: only counters that move speak for it.
    assert serve("1 counters\n2 health 503\n3 counters\n4 health 503") == [
        "4 broken engine-died: /health reports a dead engine"
    ]
    assert serve("1 health 503\n2 health 503") == [
        "2 broken engine-died: /health reports a dead engine"
    ]


def test_any_exit_of_a_wanted_engine_is_a_failure() -> None:
    assert serve("9 exit 0") == ["9 broken engine-died: the engine exited: exit status 0"]
    assert play("9 exit -9") == ["9 broken engine-died: the engine exited: killed by signal 9"]


def test_a_card_the_driver_lost_breaks_the_child() -> None:
    assert serve("9 gpu-fault GPU is lost") == ["9 broken gpu-lost: GPU 0: GPU is lost"]


def test_throttling_is_told_once_and_when_it_ends() -> None:
    assert serve("1 gpu heat\n2 gpu heat\n3 gpu well") == [
        "1 noticed GPU 0 is throttled by heat at 88 °C",
        "3 noticed GPU 0 is back at full speed",
    ]


# -- idle probes ----------------------------------------------------------------------------

PROBING = DetectorRules(replace(WATCH, idle_probe_s=100))


def test_an_idle_engine_is_probed_if_asked_for_and_not_after_it_served() -> None:
    polled = "\n".join(f"{t} counters\n{t} tick" for t in range(0, 100, 20))
    assert serve(polled) == []
    assert serve(polled + "\n100 tick\n101 tick", PROBING) == ["100 probe idle for 100 s"]
    assert serve(polled + "\n90 counters gen=1\n100 tick\n140 tick", PROBING) == []


def test_an_idle_engine_that_does_not_answer_is_probed_again_and_then_hung() -> None:
    polled = "\n".join(f"{t} counters\n{t} tick" for t in range(0, 101, 20))
    assert serve(polled + "\n130 no-answer\n160 no-answer", PROBING)[1:] == [
        "130 probe an idle engine did not answer: no answer in 30 s",
        "160 broken hang: an idle engine did not answer: no answer in 30 s; "
        "a test completion failed: no answer in 30 s",
    ]


# -- trends ---------------------------------------------------------------------------------


def test_drafts_of_which_nothing_is_accepted_have_collapsed_after_a_minute() -> None:
    steps = [f"{10 * n} counters gen={100 * n} drafted={300 * n}" for n in range(8)]
    assert serve("\n".join(steps)) == [
        "60 broken draft-collapse: no draft was accepted in 6 intervals"
    ]


def test_one_accepted_draft_is_enough_and_too_few_drafts_say_nothing() -> None:
    some = [
        f"{10 * n} counters gen={100 * n} drafted={300 * n} accepted={n // 5}" for n in range(30)
    ]
    assert serve("\n".join(some)) == []
    few = [f"{10 * n} counters gen={n} drafted={3 * n}" for n in range(30)]
    assert serve("\n".join(few)) == []


def test_acceptance_under_a_tenth_of_its_own_past_has_collapsed_after_three_minutes() -> None:
    shares, accepted, lines = [0.7] * 20 + [0.01] * 30, 0, ["0 counters"]
    for n, share in enumerate(shares, 1):
        accepted += int(300 * share)
        lines.append(f"{10 * n} counters gen={500 * n} drafted={300 * n} accepted={accepted}")
    assert serve("\n".join(lines)) == [
        "380 broken draft-collapse: 1.0% of the drafts were accepted in 18 intervals, "
        "compared with 70% usually"
    ]
    # Drafts looked up in the text do that where it stops repeating itself.
    assert serve("\n".join(lines), replace(RULES, lookup_drafts=True)) == []


def test_decoding_far_below_its_own_history_is_told_and_so_is_its_return() -> None:
    rates = [60] * 20 + [10] * 8 + [60] * 2
    tokens, lines = 0, ["0 counters run=1 p=1 gen=0"]
    for n, rate in enumerate(rates, 1):
        tokens += rate * 10
        lines.append(f"{10 * n} counters run=1 p=1 gen={tokens}")
    assert serve("\n".join(lines)) == [
        "260 noticed decoding at 10.0 tokens/s per request, compared with 60.0 usually",
        "290 noticed decoding is back at 60.0 tokens/s per request",
    ]


# -- properties -----------------------------------------------------------------------------

_AT = st.floats(0, 100_000, allow_nan=False)
_PROGRESS = st.builds(
    ProgressCounters,
    *[st.integers(0, 50).map(float) for _ in range(4)],
    st.floats(0, 1),
    *[st.integers(0, 3).map(float) for _ in range(2)],
    *[st.integers(0, 999).map(float) for _ in range(2)],
    st.none() | st.integers(0, 3),
    _AT,
)
_MARKS = st.none() | st.builds(
    LogMark,
    st.none() | st.sampled_from(("load", "compile", "http")),
    st.sampled_from(("", "shard 1 of 2")),
    st.none() | st.floats(0, 1),
    st.booleans(),
    st.booleans(),
)
_OBSERVATIONS = st.one_of(
    _PROGRESS,
    st.builds(LogLine, st.text(max_size=20), _AT, _MARKS),
    st.builds(Health, st.none() | st.sampled_from((200, 503)), _AT),
    st.builds(ProbeResult, st.booleans(), st.just("late"), _AT),
    st.builds(WatchTick, _AT),
)


@examples(300)
@given(st.lists(_OBSERVATIONS, max_size=60), st.booleans())
def test_a_child_breaks_once_at_most_and_is_silent_afterwards(
    observations: list[detector.Observation], serving: bool
) -> None:
    watch = proven(begin(0), 0) if serving else begin(0)
    broken = 0
    for observation in sorted(observations, key=lambda o: o.at):
        silent = broken > 0
        watch, signs = observe(watch, observation, RULES)
        broken += sum(isinstance(sign, Broken) for sign in signs)
        assert not (silent and signs)
    assert broken <= 1


@examples(300)
@given(st.lists(_OBSERVATIONS, max_size=60))
def test_a_serving_engine_whose_counters_move_never_hangs(
    observations: list[detector.Observation],
) -> None:
    watch, tokens = proven(begin(0), 0), 0.0
    for n, observation in enumerate(o for o in observations if isinstance(o, ProgressCounters)):
        tokens += 1
        now = replace(observation, generation_tokens=tokens, accepted_tokens=tokens, at=n * 50.0)
        watch, signs = observe(watch, now, RULES)
        assert not any(isinstance(sign, (Broken, Probe)) for sign in signs)


@examples(300)
@given(
    st.lists(st.floats(0.1, 1), min_size=1, max_size=40), st.floats(0.5, 15), st.floats(0.1, 100)
)
def test_an_engine_whose_steps_are_shorter_than_hang_s_is_never_called_hung_nor_asked_often(
    steps: list[float], look_s: float, answer_s: float
) -> None:
    """Long prefills on a slow machine, with our question waiting behind them."""
    longest_s = WATCH.hang_s - 2 * look_s  # a look may come late at both ends
    ends = list(accumulate(step * longest_s for step in steps))
    watch, at, back = proven(begin(0), 0), 0.0, float("inf")
    asked = 0
    while at < ends[-1]:
        at += look_s
        moves = float(bisect(ends, at))
        seen: list[detector.Observation] = [replace(NOTHING, pending=1, prompt_tokens=moves, at=at)]
        if back <= at:
            seen.insert(0, ProbeResult(False, "late", back))
            back = float("inf")
        for observation in seen:
            watch, signs = observe(watch, observation, RULES)
            assert not any(isinstance(sign, Broken) for sign in signs)
            probes = [sign for sign in signs if isinstance(sign, Probe)]
            asked += len(probes)
            back = min([back, *(at + min(answer_s, probe.timeout_s) for probe in probes)])
    assert asked <= 1 + at // CALM_S


@examples(300)
@given(st.floats(5, 600), st.floats(1, 60), st.floats(0.5, 5), st.floats(0, 700))
def test_a_hang_is_believed_after_hang_s_in_all_and_no_later_than_it_can_be_confirmed(
    hang_s: float, confirm_s: float, look_s: float, fails_s: float
) -> None:
    rules = DetectorRules(replace(WATCH, hang_s=hang_s, confirm_s=confirm_s))
    watch, at, asked, back = proven(begin(0), 0), 0.0, 0, None
    watch, _ = observe(watch, replace(NOTHING, pending=1), rules)
    while not watch.broken:
        at += look_s
        watch, signs = observe(watch, replace(NOTHING, pending=1, at=at), rules)
        for sign in signs:
            if isinstance(sign, Probe):
                asked += 1
                back = at + min(fails_s, sign.timeout_s)
        if back is not None and not watch.broken and back <= at + look_s:
            watch, _ = observe(watch, ProbeResult(False, "late", back), rules)
            at, back = max(at, back), None
    assert hang_s <= at <= hang_s + confirm_s + 2 * look_s
    assert asked <= 2
