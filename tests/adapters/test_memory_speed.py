"""Host memory bandwidth is measured once, and never reused for another machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from caovand.adapters.system import memory_speed
from caovand.adapters.system.host import read_host


def test_it_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = read_host()
    assert memory_speed.with_memory_speed(host, tmp_path).memory_gb_s is None
    measured = memory_speed.with_memory_speed(host, tmp_path, measure_in=tmp_path).memory_gb_s
    assert measured is not None
    assert measured > memory_speed.SLOWEST
    monkeypatch.setattr(memory_speed.sys, "executable", "/nonexistent")
    again = memory_speed.with_memory_speed(host, tmp_path / "empty", tmp_path, measure_in=tmp_path)
    assert again.memory_gb_s == measured
    other = replace(host, cpus=host.cpus + 1)
    assert memory_speed.with_memory_speed(other, tmp_path, measure_in=tmp_path).memory_gb_s is None


@pytest.mark.parametrize("speed", ["20", -1.0, 1e9, None, float("nan"), True])
def test_what_is_no_speed_is_not_believed(tmp_path: Path, speed: object) -> None:
    host = read_host()
    document = {"machine": {"cpus": host.cpus, "ram_mib": host.ram_mib}, "gb_s": speed}
    (tmp_path / memory_speed.FILE).write_text(json.dumps(document))
    assert memory_speed.with_memory_speed(host, tmp_path).memory_gb_s is None


def test_a_disk_that_takes_nothing_costs_the_measurement_alone(tmp_path: Path) -> None:
    host = replace(read_host(), cpus=1)
    assert (
        memory_speed.with_memory_speed(host, measure_in=tmp_path / "none" / "there").memory_gb_s
        is None
    )
