"""Facts that plan and doctor determine before querying an engine, and the owner of the port."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.cli import plan as plan_verb
from caovand.cli.common import survey
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.doctor import examination, facts
from caovand.cli.main import main
from caovand.core.config.schema import Config
from caovand.core.doctor.checks import port_checks
from tests.cli.test_offline_verbs import GOOD
from tests.ports import free_port

Configure = Callable[[str], list[str]]


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Writes a file for an engine that is here and never to be asked; the words that name it."""
    for name in ("RUNTIME", "STATE", "CACHE", "LOGS"):
        monkeypatch.setenv(f"{name}_DIRECTORY", str(tmp_path / name.lower()))

    def asked(*_: object, **__: object) -> Any:
        raise AssertionError("the engine was asked")

    monkeypatch.setattr(plan_verb, "inspect", asked)
    monkeypatch.setattr(facts, "find_orphans", lambda: ())  # other tests' engines

    def write(text: str) -> list[str]:
        path = tmp_path / "caovan.toml"
        path.write_text(f'{text}\n[engine]\nkind = "vllm"\npython = "{sys.executable}"\n')
        return ["--config", str(path)]

    return write


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[model]\npath = ""', "[model] path is empty; set it to a model's folder"),
        ('[model]\npath = "/srv/none"', "cannot read model /srv/none: there is no such folder"),
        ('[model]\npath = "models/x"', "there is no such folder; set [model] path to a folder"),
        (
            '[model]\npath = "a/b"\n[server]\napi_key_file = "/etc/nokey"',
            "cannot read [server] api_key_file /etc/nokey: No such file or directory; write",
        ),
        (
            '[model]\npath = "a/b"\n[server]\nhost = "localhost:8000"',
            'is "localhost:8000"; write host = "localhost" and port = 8000',
        ),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_the_engine_is_asked(
    configured: Configure, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    assert main(["plan", *configured(text)]) == Exit.FAILED
    assert says in capsys.readouterr().err


def test_a_missing_engine_is_the_first_thing_to_be_fixed(configured: Configure) -> None:
    config = replace(Config(), engine=replace(Config().engine, kind="vllm", python="/srv/none"))
    assert survey.read_first(config) is None
    here = replace(config, engine=replace(config.engine, python=sys.executable))
    with pytest.raises(CommandError, match="path is empty"):
        survey.read_first(here)


def test_the_doctor_fails_an_empty_path(
    configured: Configure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        examination, "inspect", lambda *_: survey.SurveyedMachine(GOOD.gpus, GOOD.host, GOOD.engine)
    )
    assert main(["doctor", *configured(""), "--json"]) == Exit.FAILED
    checks = json.loads(capsys.readouterr().out)["checks"]
    (failed,) = (one for one in checks if one["verdict"] == "FAIL")
    assert failed["group"] == "model"
    assert failed["text"] == "cannot choose a model: [model] path is empty"
    assert failed["remedy"] == "set it to a model's folder"


def test_the_doctor_checks_the_caches_of_the_running_daemon(
    configured: Configure,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        examination, "inspect", lambda *_: survey.SurveyedMachine(GOOD.gpus, GOOD.host, GOOD.engine)
    )
    cache = tmp_path / "of-the-daemon"
    answer = {"daemon": {"cache": str(cache)}, "mode_origin": "file", "mode": "auto"}
    monkeypatch.setattr(examination, "running", lambda _: answer)
    main(["doctor", *configured(""), "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    (found,) = (one["text"] for one in checks if one["group"] == "caches")
    assert found.endswith(f" under {cache}")
    assert survey.cache_of({}) == tmp_path / "cache"
    assert survey.cache_of({"daemon": {}}) == tmp_path / "cache", "of a daemon before an upgrade"


def test_the_port_of_the_daemons_own_engine_is_neither_free_nor_taken() -> None:
    with socket.socket() as server:
        port = free_port()
        server.bind(("127.0.0.1", port))
        server.listen()
        own = facts.port_facts(port, frozenset({os.getpid()}), elsewhere=False)
        others = facts.port_facts(port, frozenset({1}), elsewhere=False)
        unknown = facts.port_facts(port, frozenset(), elsewhere=True)
    free = facts.port_facts(port, frozenset({os.getpid()}), elsewhere=False)
    found = [list(port_checks(replace(GOOD, **one))) for one in (own, others, unknown, free)]
    (used,), (taken,), nothing, (unused,) = found
    assert used.text == f"port {port} is used by the engine that the daemon runs"
    assert (taken.verdict, nothing) == ("FAIL", [])
    assert f"(pid {os.getpid()})" in taken.text
    assert unused.text == f"port {port} is free"
