"""Keys in the state folder: added, revoked, damaged, and what they used."""

from __future__ import annotations

from pathlib import Path

import pytest

from caovand.adapters.system import wall_clock
from caovand.core.gateway.keys import ClientKey, digest_of
from caovand.core.problem import ProblemError
from caovand.core.units import DAY_S
from caovand.daemon import keys as module
from caovand.daemon.keys import KEYS, USAGE, Keys


class World:
    def __init__(self, folder: Path) -> None:
        self.folder, self.told, self.changes = folder, list[str](), 0

    def open(self) -> Keys:
        return Keys(self.folder, lambda _, text: self.told.append(text), self.changed)

    def changed(self) -> None:
        self.changes += 1


def test_a_key_is_shown_once_kept_as_a_digest_and_gone_once_revoked(tmp_path: Path) -> None:
    world = World(tmp_path)
    keys = world.open()
    assert keys.for_gateway() is None
    secret = keys.add(ClientKey("alice", "", ("tiny",), 60, max_tokens=9))
    path = tmp_path / KEYS
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret not in path.read_text()
    (kept,) = world.open().for_gateway() or ()
    assert kept["digest"] == digest_of(secret)
    assert (kept["name"], kept["models"], kept["rpm"]) == ("alice", ("tiny",), 60)
    assert kept["max_tokens"] == 9
    assert "digest" not in keys.describe()["keys"][0]
    with pytest.raises(ProblemError, match="a key of this name exists"):
        keys.add(ClientKey("alice", ""))
    keys.revoke("alice")
    assert world.changes == 2
    with pytest.raises(ProblemError, match="no such key"):
        keys.revoke("alice")
    # Without any left the gateway is closed, not open to everybody.
    assert keys.for_gateway() == world.open().for_gateway() == []


@pytest.mark.parametrize("text", ["{", "[7]", '[{"name": "a"}]'])
def test_a_damaged_file_opens_the_gateway_to_nobody(tmp_path: Path, text: str) -> None:
    world = World(tmp_path)
    (tmp_path / KEYS).write_text(text)
    assert world.open().for_gateway() == []
    assert "refuses every key" in world.told[0]


def test_use_by_key_and_day_outlives_the_daemon(tmp_path: Path) -> None:
    world = World(tmp_path)
    keys, today = world.open(), int(wall_clock.now() // DAY_S)
    assert keys.take([[today - 1, "a", 1, 5, 5], [today, "a", 1, 10, 2], [today, "b", 1, 1, 1]])
    keys.save()
    assert not keys.take([[today, "a", 2, 3, 4]]), "saved a moment ago"
    assert keys.used_today() == {"day": today, "tokens": {"a": 19, "b": 2}}
    keys.save()
    rows = world.open().describe()["usage"]
    assert [(row["key"], row["requests"], row["read"], row["written"]) for row in rows] == [
        ("a", 3, 13, 6), ("b", 1, 1, 1), ("a", 1, 5, 5),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="x"):
        keys.take([["x", "a", 1, 1, 1]])
    (tmp_path / USAGE).write_text('{"1": {"a": [1]}}')
    assert world.open().describe()["usage"] == []


def test_old_days_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_DAYS", 2)
    keys = World(tmp_path).open()
    keys.take([[day, "a", 1, 1, 1] for day in range(5)])
    assert len(keys.describe()["usage"]) == 2
