"""OOM kills are counted for the engine they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest

from caovand.adapters.system import oom_kills as module
from caovand.adapters.system.oom_kills import OomKills, memory_cgroup, oom_kills

EVENTS = "memory.events"


@pytest.mark.parametrize(
    ("name", "text", "kills"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", 1),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", None),
    ],
)
def test_kills_of_a_control_group_are_counted_by_either_version(
    tmp_path: Path, name: str, text: str, kills: int | None
) -> None:
    (tmp_path / name).write_text(text)
    assert oom_kills(tmp_path) == kills


def test_a_group_that_does_not_count_says_nothing(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) is None


@pytest.mark.parametrize(
    ("membership", "folder"),
    [
        ("0::/system.slice/caovan.service\n", "system.slice/caovan.service"),
        ("4:cpu,memory:/caovan.service\n1:name=systemd:/x\n0::/x\n", "memory/caovan.service"),
        ("4:memory:/\n0::/\n", None),
    ],
)
def test_the_memory_limit_is_that_of_our_own_group(
    tmp_path: Path, membership: str, folder: str | None
) -> None:
    expected = None if folder is None else tmp_path / folder
    assert memory_cgroup(membership, tmp_path) == expected


def count(group: Path, kills: int, name: str = EVENTS) -> None:
    group.mkdir(exist_ok=True)
    (group / name).write_text(f"oom_kill_disable 0\noom_kill {kills}\n")


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The memory group of a unit, with the groups of two engines in it."""
    monkeypatch.setattr(module, "_own_group", lambda root: root)
    return tmp_path


@pytest.mark.parametrize("name", [EVENTS, "memory.oom_control"])
def test_an_engine_is_not_blamed_for_a_kill_of_another_one(unit: Path, name: str) -> None:
    for group in (unit, unit / "engine-main", unit / "engine-other"):
        count(group, 3, name)
    main = OomKills(Path("/sys/fs/cgroup/systemd/u.service/engine-main"), unit)
    other = OomKills(Path("/sys/fs/cgroup/systemd/u.service/engine-other"), unit)
    count(unit, 4, name)
    count(unit / "engine-other", 4, name)
    assert (main.any(), other.any()) == (False, True)


@pytest.mark.parametrize("cgroup", [Path("/engine-main"), None])
def test_the_unit_counts_for_an_engine_whose_own_group_does_not(
    unit: Path, cgroup: Path | None
) -> None:
    """The kernel gives a group below one that has processes no memory controller."""
    (unit / "engine-main").mkdir()
    count(unit, 3)
    kills = OomKills(cgroup, unit)
    assert not kills.any()
    count(unit, 4)
    assert kills.any()


def test_nothing_is_counted_where_no_group_counts(unit: Path) -> None:
    kills = OomKills(Path("/engine-main"), unit)
    count(unit, 1)
    assert not kills.any()
