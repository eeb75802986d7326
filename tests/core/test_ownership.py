"""The engine of each process: over generated histories with known owners, and case by case."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.facts.ownership import KnownEngine, Ownership, Process, assign_owners

DAEMON, ITS_SESSION, SOMEBODY = 10, 9, 1


@dataclass
class World:
    """A daemon that is the subreaper, and engines whose processes fork, hide and end."""

    grouped: bool = False
    clock: int = 100
    pid: int = 100
    processes: dict[int, Process] = field(default_factory=dict)
    truth: dict[int, str] = field(default_factory=dict)
    outputs: dict[int, str] = field(default_factory=dict)
    engines: dict[str, KnownEngine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.processes[DAEMON] = Process(DAEMON, 1, SOMEBODY, ITS_SESSION, 0, "caovand")
        self.processes[11] = Process(11, 2, DAEMON, ITS_SESSION, 0, "a helper of the daemon")
        self.processes[12] = Process(12, 3, SOMEBODY, 12, 0, "a stranger")

    def new(self, parent: int, session: int | None, engine: str, output: str) -> int:
        self.clock, self.pid = self.clock + 1, self.pid + 1
        made = Process(self.pid, self.clock, parent, session or self.pid, 0, engine)
        self.processes[self.pid] = made
        self.truth[self.pid], self.outputs[self.pid] = engine, output
        return self.pid

    def start(self, engine: str) -> None:
        first = self.processes[self.new(DAEMON, None, engine, f"pipe of {engine}")]
        self.engines[engine] = KnownEngine(first.pid, first.start, output=f"pipe of {engine}")

    def fork(self, pid: int) -> None:
        parent = self.processes[pid]
        self.new(pid, parent.session, self.truth[pid], self.outputs[pid])

    def setsid(self, pid: int) -> None:
        self.processes[pid] = replace(self.processes[pid], session=pid)

    def daemonize(self, pid: int) -> None:
        """What a process does that wants to outlive its parent, all between two looks."""
        self.fork(pid)
        middle = self.pid
        self.setsid(middle)
        self.fork(middle)
        self.exit(middle)

    def redirect(self, pid: int) -> None:
        self.outputs[pid] = "/dev/null"

    def exit(self, pid: int) -> None:
        del self.processes[pid], self.truth[pid], self.outputs[pid]
        for child in list(self.processes.values()):
            if child.parent == pid:
                self.processes[child.pid] = replace(child, parent=DAEMON)

    def owners(self) -> Ownership:
        known = [
            replace(one, grouped={pid for pid, engine in self.truth.items() if engine == name})
            if self.grouped
            else one
            for name, one in self.engines.items()
        ]
        table = list(self.processes.values())
        return assign_owners(
            table, known, DAEMON, ITS_SESSION, lambda p: {self.outputs.get(p.pid, "")}
        )

    def family(self, engine: str) -> list[Process]:
        place, found = list(self.engines).index(engine), self.owners().by_pid
        return [self.processes[pid] for pid, owner in found.items() if owner == place]

    def look(self, engine: str) -> list[Process]:
        family = self.family(engine)
        self.engines[engine] = replace(self.engines[engine], members=family)
        return family

    def end(self, engine: str) -> None:
        """KILL all there is of an engine until nothing is found, as the daemon does."""
        while family := self.look(engine):
            for process in family:
                self.exit(process.pid)
        del self.engines[engine]

    def of(self, engine: str) -> set[int]:
        return {pid for pid, name in self.truth.items() if name == engine}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["fork", "daemonize", "setsid", "exit", "redirect", "look", "start", "fork"]
        ),
        st.integers(0, 20),
    ),
    max_size=40,
)


def live(world: World, steps: list[tuple[str, int]]) -> None:
    """Let things happen, and find at each step that no process is taken for another engine's."""
    for step, number in steps:
        pids = sorted(world.truth)
        if step == "start" and len(world.engines) == 1:
            world.start("b")
        elif step == "look":
            world.look(list(world.engines)[number % len(world.engines)])
        elif pids and step not in ("look", "start"):
            getattr(world, step)(pids[number % len(pids)])
        for name in world.engines:
            assert {process.pid for process in world.family(name)} <= world.of(name)


@given(STEPS, st.booleans())
def test_no_process_of_one_engine_is_taken_for_anothers(
    steps: list[tuple[str, int]], grouped: bool
) -> None:
    world = World(grouped)
    world.start("a")
    live(world, steps)


@given(STEPS, st.booleans())
def test_the_only_engine_has_all_of_its_processes(
    steps: list[tuple[str, int]], grouped: bool
) -> None:
    world = World(grouped)
    world.start("a")
    live(world, [step for step in steps if step[0] != "start"])
    assert {process.pid for process in world.family("a")} == world.of("a")


@given(STEPS)
def test_in_cgroups_each_engine_has_all_of_its_processes(steps: list[tuple[str, int]]) -> None:
    world = World(grouped=True)
    world.start("a")
    world.start("b")
    live(world, steps)
    for name in world.engines:
        assert {process.pid for process in world.family(name)} == world.of(name)
    assert world.owners().unknown == ()


@given(STEPS, st.sampled_from(["ab", "ba"]), st.booleans())
def test_whichever_ends_first_the_other_keeps_its_own_and_nothing_is_left_in_the_end(
    steps: list[tuple[str, int]], order: str, grouped: bool
) -> None:
    world = World(grouped)
    world.start("a")
    world.start("b")
    live(world, steps)
    first, last = order
    kept = world.of(last)
    world.end(first)
    assert world.of(last) == kept
    unknown = {process.pid for process in world.owners().unknown}
    assert world.of(first) <= unknown | {process.pid for process in world.family(last)}
    world.end(last)
    assert world.truth == {}
    assert set(world.processes) == {DAEMON, 11, 12}, "and nobody else's are ended"


# -- one by one ---

A = KnownEngine(200, 50, output="pipe:[1]")
B = KnownEngine(300, 60, output="pipe:[2]")
ORPHAN = Process(400, 70, DAEMON, 399, 0, "orphan")


def owner(process: Process, *engines: KnownEngine, output: str = "") -> int | None:
    found = assign_owners([process], engines, DAEMON, ITS_SESSION, lambda _: {output})
    assert (process in found.unknown) == (process.pid not in found.by_pid and len(engines) > 1)
    return found.by_pid.get(process.pid)


def test_an_orphan_that_may_be_of_two_is_nobodys() -> None:
    assert owner(ORPHAN, A, B) is None


def test_an_orphan_is_that_of_the_engine_whose_output_it_writes_to() -> None:
    assert owner(ORPHAN, A, B, output="pipe:[2]") == 1


def test_an_orphan_of_a_session_that_one_of_its_processes_was_in_or_began() -> None:
    in_it = Process(398, 65, 300, 399, 0, "")
    began_it = Process(399, 65, 300, 300, 0, "")
    for member in (in_it, began_it):
        assert owner(ORPHAN, A, replace(B, members=[member])) == 1


def test_an_orphan_older_than_an_engine_is_not_its() -> None:
    assert owner(replace(ORPHAN, start=55), A, B) == 0


def test_an_engine_with_the_number_of_an_ended_ones_session_has_that_session() -> None:
    """The first process of one is dead and waited for, others of its session may live."""
    again = replace(B, session=A.session)
    for order, place in (((A, again), 1), ((again, A), 0)):
        younger = replace(ORPHAN, session=A.session, start=65)
        assert owner(younger, *order) == place
        assert owner(replace(younger, start=55), *order) == 1 - place


@pytest.mark.parametrize("parent", [SOMEBODY, 12])
def test_what_is_not_ours_is_nobodys(parent: int) -> None:
    stranger = replace(ORPHAN, parent=parent)
    assert assign_owners([stranger], [A, B], DAEMON, ITS_SESSION, lambda _: ()).unknown == ()
    assert owner(stranger, A) is None


def test_an_orphan_that_was_seen_stays_its_engines_wherever_it_goes() -> None:
    seen = replace(ORPHAN, parent=B.session, session=B.session)
    assert owner(ORPHAN, A, replace(B, members=[seen])) == 1
    again = replace(ORPHAN, start=ORPHAN.start + 1, session=500)
    other_process = replace(B, members=[replace(seen, pid=again.pid, session=501)])
    assert owner(again, A, other_process) is None, "another has got its pid since"


def test_an_orphan_outside_all_cgroups_is_of_no_engine() -> None:
    engines = [replace(A, grouped={200}), replace(B, grouped={300})]
    found = assign_owners([ORPHAN], engines, DAEMON, ITS_SESSION, lambda _: ())
    assert (found.by_pid, found.unknown) == ({}, ())
    assert owner(ORPHAN, engines[0]) == 0, "where one engine lives, it is that one's"
