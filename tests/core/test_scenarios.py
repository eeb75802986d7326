"""Complete stories of the state machine, in `tests/scenarios/*.txt`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caovand.core.config.schema import WatchSection
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision
from caovand.core.lifecycle import events
from caovand.core.lifecycle.events import Action, EndChild, Inspect, LifecycleEvent, Spawn
from caovand.core.lifecycle.state import LifecycleRules, Snapshot
from caovand.core.lifecycle.transitions import step
from caovand.core.plan import Plan

FOLDER = Path(__file__).parents[1] / "scenarios"
STORIES = sorted(FOLDER.glob("*.txt"))


def plan(letter: str) -> Plan:
    return Plan(letter, {}, {})


def told(action: Action) -> str:
    if isinstance(action, Inspect):
        return f"inspect {action.plan.model}" if action.plan else "inspect"
    if isinstance(action, Spawn):
        return f"spawn {action.plan.model}"
    return f"end in {action.grace_s:g}" if isinstance(action, EndChild) else "quit"


def finding(words: list[str]) -> Finding:
    failure: Any = words[0] if words else "engine-died"
    return Finding(failure, " ".join(words[1:]) or failure)


def read_event(at: float, words: list[str], s: Snapshot) -> LifecycleEvent:
    """`planned A`, `exited @2 device-oom-load`, `refused hold port-busy` as an event."""
    name, *rest = words
    number = int(rest.pop(0)[1:]) if rest and rest[0].startswith("@") else None
    child: dict[str, Any] = {"generation": s.generation if number is None else number}
    look: dict[str, Any] = {"inspection": s.inspection if number is None else number}
    makers: dict[str, Callable[[], LifecycleEvent]] = {
        "start": lambda: events.Start(at=at),
        "restart": lambda: events.Restart(at=at),
        "reconfigured": lambda: events.Reconfigured(at=at),
        "stop": lambda: events.Stop(at=at, quit=rest == ["quit"]),
        "tick": lambda: events.TimePassed(at=at),
        "planned": lambda: events.Planned(at=at, plan=plan(rest[0]), **look),
        "refused": lambda: events.StartRefused(
            at=at, finding=finding(rest[1:]), hold=rest[0] == "hold", **look
        ),
        "progressed": lambda: events.Progressed(at=at, phase=rest[0], **child),
        "heartbeat": lambda: events.Progressed(at=at, phase=rest[0], heartbeat=True, **child),
        "proven": lambda: events.Proven(at=at, **child),
        "failed": lambda: events.Failed(at=at, finding=finding(rest), **child),
        "exited": lambda: events.Exited(at=at, finding=finding(rest), **child),
        "gone": lambda: events.Gone(at=at, **child),
        "unkillable": lambda: events.Unkillable(at=at, finding=finding(rest), **child),
    }
    return makers[name]()


def rules_of(lines: list[str]) -> LifecycleRules:
    thresholds: dict[str, Any] = {}
    verdicts: dict[tuple[str, str], Decision] = {}
    for line in lines:
        kind, *rest = line.split()
        if kind == "rules":
            thresholds |= {k: float(v) for k, v in (pair.split("=") for pair in rest)}
        elif kind == "judge":
            failure, of, verdict, *lower = rest
            made: Any = verdict
            verdicts[failure, of] = Decision(made, plan(lower[0]) if lower else None)
    return LifecycleRules(
        WatchSection(**thresholds),
        judge=lambda p, f, _: verdicts.get((f.failure, p.model), Decision("again")),
    )


def play(text: str) -> str:
    """The transcript with states, counts and actions as the machine gives them."""
    head = [line for line in text.splitlines() if line.split(" ")[0] in ("rules", "judge")]
    rules, s, lines = rules_of(head), Snapshot(), []
    for line in text.splitlines():
        if not line or line.startswith("#") or line in head:
            lines.append(line)
            continue
        given = line.split("->")[0]
        why = line.split("|")[2].strip() if line.count("|") == 2 else ""
        at, *words = given.split()
        s, actions = step(s, read_event(float(at), words, s), rules)
        state = s.state.value + (f" {s.failures}" if s.failures else "")
        doing = ", ".join(told(action) for action in actions) or "-"
        lines.append(f"{given.rstrip():<36} -> {state:<12} | {doing:<10} | {why}".rstrip(" |"))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("story", STORIES, ids=lambda path: str(path.stem))
def test_the_machine_acts_as_the_transcript_says(story: Path, rewrite: bool) -> None:
    compare(story, rewrite=rewrite)


def compare(story: Path, *, rewrite: bool) -> None:
    """Play a transcript; with `rewrite` the file then says what the machine does."""
    text = story.read_text(encoding="utf-8")
    played = play(text)
    if rewrite:
        story.write_text(played, encoding="utf-8")
    else:
        assert played == text


def test_a_transcript_is_rewritten_only_when_asked_and_keeps_what_people_wrote(
    tmp_path: Path,
) -> None:
    story = tmp_path / "story.txt"
    draft = """# Only events are written by hand; the rest is the machine's.
judge gpu-lost A hold
0 start
 1 planned A -> FAILED | quit | a plan at last

  2 exited gpu-lost
"""
    story.write_text(draft)
    with pytest.raises(AssertionError):
        compare(story, rewrite=False)
    assert story.read_text() == draft
    compare(story, rewrite=True)
    written = story.read_text()
    assert written.splitlines() == [
        *draft.splitlines()[:2],
        "0 start                              -> STARTING     | inspect",
        " 1 planned A                         -> STARTING     | spawn A    | a plan at last",
        "",
        "  2 exited gpu-lost                  -> RECYCLING 1  | end in 2",
    ]
    compare(story, rewrite=False)


def test_there_are_transcripts() -> None:
    assert STORIES
