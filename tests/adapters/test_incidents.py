"""Incidents on disk: complete or absent, and limited in number."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.incidents import Incidents, NoIncident

REPORT: dict[str, Any] = {
    "at": "2026-01-01T00:00:00", "failure": "hang", "decision": None,
    "finding": {"phase": "serving", "text": "nothing moves"},
}  # fmt: skip


def test_an_incident_is_listed_and_read_in_pieces(tmp_path: Path) -> None:
    store = Incidents(tmp_path / "incidents")
    assert store.listed() == []
    assert store.write("hang", REPORT, {"log.txt": "0123456789"}) == "0001-hang"
    (row,) = store.listed()
    assert (row["number"], row["failure"], row["text"]) == (1, "hang", "nothing moves")
    assert store.files(1)["log.txt"] == 10
    assert store.read(1, "log.txt", 8, 100) == b"89"


def test_only_its_own_files_can_be_read(tmp_path: Path) -> None:
    store = Incidents(tmp_path)
    store.write("hang", REPORT, {})
    with pytest.raises(NoIncident, match="no such file"):
        store.read(1, "../0001-hang/incident.json", 0, 100)
    with pytest.raises(NoIncident, match="incident 2"):
        store.files(2)


def test_a_file_that_comes_later_is_added_whole_to_an_incident_that_is_still_there(
    tmp_path: Path,
) -> None:
    store = Incidents(tmp_path, max_bytes=25_000)
    first, second = (store.write("hang", REPORT, {}) for _ in range(2))
    store.add(second, "node-1.json", "{}")
    assert store.read(2, "node-1.json", 0, 9) == b"{}"
    # What is just being written is none of its files.
    (tmp_path / second / ".node-2.json.x").write_text("{")
    assert set(store.files(2)) == {"incident.json", "node-1.json"}
    store.add(second, "node-2.json", "x" * 24_800)
    with pytest.raises(NoIncident, match="has expired"):
        store.add(first, "node-1.json", "{}")
    for name, file in ((second, "../x.json"), (second, "a/b.json"), ("..", "x.json")):
        with pytest.raises(NoIncident):
            store.add(name, file, "{}")


def test_fields_that_come_later_are_added_to_the_report(tmp_path: Path) -> None:
    store = Incidents(tmp_path)
    name = store.write("hang", REPORT, {})
    store.amend(name, {"requests": ["POST /v1/x"]})
    report = json.loads(store.read(1, "incident.json", 0, 10_000))
    assert report == {"number": 1, **REPORT, "requests": ["POST /v1/x"]}
    with pytest.raises(OSError, match="0002"):
        store.amend("0002-hang", {})


def test_the_oldest_go_when_there_are_too_many_and_numbers_go_on(tmp_path: Path) -> None:
    store = Incidents(tmp_path, max_count=3)
    for _ in range(5):
        store.write("hang", REPORT, {})
    assert [row["number"] for row in store.listed()] == [3, 4, 5]


def test_the_oldest_go_when_they_are_too_large(tmp_path: Path) -> None:
    store = Incidents(tmp_path, max_bytes=25_000)
    for _ in range(4):
        store.write("hang", REPORT, {"log.txt": "x" * 10_000})
    assert [row["number"] for row in store.listed()] == [3, 4]


def test_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Incidents(tmp_path)
    store.write("hang", REPORT, {})

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space"):
            store.write("hang", REPORT, {})
    assert [path.name for path in tmp_path.iterdir()] == ["0001-hang"]


def test_what_a_killed_daemon_left_half_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".new-abc").mkdir()
    Incidents(tmp_path).write("hang", REPORT, {})
    assert [path.name for path in tmp_path.iterdir()] == ["0001-hang"]
