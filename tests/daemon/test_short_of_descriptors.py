"""Failures for lack of our own descriptors are not blamed on the engine, its model or its files."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from caovand.adapters.files import state_file
from caovand.adapters.network import http
from caovand.adapters.network.http import Endpoint, Unanswered
from caovand.core import limits
from caovand.core.config.parser import parse
from caovand.core.health import detector
from caovand.core.health.detector import DetectorRules
from caovand.core.health.observation import NotObserved, ProgressCounters, WatchTick
from caovand.core.health.signs import Broken
from caovand.daemon.start import inspection
from caovand.preparation.plan_request import PlanRequest
from tests.core.machines import CUDA


def exhausted(*_: object, **__: object) -> object:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_call_that_had_no_descriptor_tells_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", exhausted)
    with pytest.raises(Unanswered) as caught:
        http.call(Endpoint("127.0.0.1", 1), "/health", 1.0)
    assert "LimitNOFILE" in limits.limit_reached(caught.value)


def test_an_engine_that_could_not_be_looked_at_for_an_hour_does_not_hang() -> None:
    rules = DetectorRules()
    watch = detector.proven(detector.begin(0.0), 0.0)
    busy = ProgressCounters(*[0.0] * 9, pending=1, at=1.0)
    watch, _ = detector.observe(watch, busy, rules)
    for at in range(5, 3600, 5):
        watch, signs = detector.observe(watch, NotObserved(float(at)), rules)
        watch, more = detector.observe(watch, WatchTick(float(at)), rules)
        assert not any(isinstance(sign, Broken) for sign in (*signs, *more))


def test_a_state_file_that_cannot_be_opened_now_is_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mode.json").write_text('{"mode": "auto"}')
    monkeypatch.setattr(os, "open", exhausted)
    (text,) = state_file.set_aside(tmp_path, {"mode.json": lambda _: True})
    assert "Too many open files" in text
    assert os.listdir(tmp_path) == ["mode.json"]


def test_a_model_that_cannot_be_read_now_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(inspection.probe, "probe_engine", lambda *_, **__: CUDA)
    monkeypatch.setattr(inspection.trust, "require", lambda *_: None)
    monkeypatch.setattr("caovand.adapters.files.safe_files.read", exhausted)
    request = PlanRequest(parse({"model": {"path": str(tmp_path)}}), None, {})
    with pytest.raises(inspection.StartObstacle) as caught:
        inspection.inspect(request, inspection.Directories(*[tmp_path] * 4))
    assert caught.value.hold
