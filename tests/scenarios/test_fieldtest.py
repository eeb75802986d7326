"""`caovanctl fieldtest` over the stand-in engine, next to a service that serves."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caovand.cli.main import main
from caovand.lab.bench import drive
from caovand.lab.bench.drive import Interrupted
from tests.daemon_process import Daemon, daemon
from tests.lab.core.test_fieldtest import CELL
from tests.scenarios.test_supervision import CONTEXT_TOO_LONG, configuration, model  # noqa: F401

SECRET = "hf_abcdefghijklmnopqrst"
RESULT = {"cells": [CELL], "complete": True}


@pytest.fixture
def service(
    model: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Daemon]:
    """A service that serves; commands work in its folders, and the cards' figures are given."""
    text = configuration(model).replace("STANDIN = ", f'HF_TOKEN = "{SECRET}", STANDIN = ')
    with daemon(text) as one:
        one.until_state("SERVING")
        for name, value in one.environ.items():
            if name.endswith("_DIRECTORY"):
                monkeypatch.setenv(name, value)
        monkeypatch.setattr(drive, "measure", lambda *_: (RESULT, None))
        yield one


def run(service: Daemon, *words: str) -> tuple[int, dict[str, str]]:
    """Run it; the exit status and the files of the archive, if there is one."""
    target = service.folder / "found.tar.gz"
    code = main(["fieldtest", str(target), "--quick", "--yes", *words])
    if not target.exists():
        return code, {}
    with tarfile.open(target) as archive:
        files = {one.name: archive.extractfile(one) for one in archive}
        return code, {name: file.read().decode() for name, file in files.items() if file}


def test_it_measures_with_the_cards_to_itself_and_leaves_the_service_as_it_was(
    service: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    before = service.status()
    code, files = run(service)
    assert code == 0
    said = capsys.readouterr()
    assert "the engine of the service is stopped until the test is over" in said.err
    assert "the engine of the service is starting again" in said.err
    trial = json.loads(files["found/configured.json"])
    assert trial["state"] == "measured"
    assert trial["bench"] == RESULT
    assert any(text.startswith("engine started") for text in trial["events"])
    assert "| as configured | 500 | 1 | 900.0 | - | 41.5 |" in files["found/report.md"]
    assert files["found/report.md"] in said.out
    assert SECRET not in "".join(files.values())
    after = service.until_state("SERVING")
    assert after["engine_pid"] != before["engine_pid"]
    assert not (service.folder / "state/fieldtest").exists()


def test_stopped_by_hand_it_goes_on_where_it_was(
    service: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drive, "measure", lambda *_: ({"cells": []}, Interrupted(None)))
    code, files = run(service)
    assert (code, files) == (130, {})
    service.until_state("SERVING")
    assert "[1/" in capsys.readouterr().err
    monkeypatch.setattr(drive, "measure", lambda *_: (RESULT, None))
    code, files = run(service)
    assert (code, "found/configured.json" in files) == (0, True)
    said = capsys.readouterr().err
    assert "[1/" not in said
    assert "[3/" in said


def test_a_trial_that_was_healed_is_no_measurement_of_the_full_plan(
    service: Daemon, tmp_path: Path
) -> None:
    other = tmp_path / "short.toml"
    orders = {"at": {"kv": CONTEXT_TOO_LONG}, "die_at": "kv", "unless": "1024"}
    text = service.config_path.read_text().replace('"{}"', json.dumps(json.dumps(orders)))
    other.write_text(text)
    code, files = run(service, "--config", str(other))
    trial: dict[str, Any] = json.loads(files["found/configured.json"])
    assert code == 0
    assert (trial["state"], trial["plan"]["rungs"]) == ("measured", ["context 1024"])
    assert trial["modelled"] is None
    title = "as configured, degraded: context 1024"
    assert f"| {title} | 500 | 1 | 900.0 | - | 41.5 | - |" in files["found/report.md"]
    (note,) = (line for line in files["found/report.md"].splitlines() if f"- {title}: " in line)
    assert "because of kv-cache-short" in note
    assert trial["failure"]["text"] in note
    service.until_state("SERVING")


def test_an_engine_that_does_not_start_is_a_result(service: Daemon, tmp_path: Path) -> None:
    other = tmp_path / "broken.toml"
    text = service.config_path.read_text().replace('"{}"', json.dumps('{"die_at": "load"}'))
    other.write_text(f"{text}\n[policy]\nstrict = true\n")
    code, files = run(service, "--config", str(other))
    trial: dict[str, Any] = json.loads(files["found/configured.json"])
    assert code == 0
    assert trial["state"] == "failed"
    assert f"- as configured: failed: {trial['why']}" in files["found/report.md"]
    service.until_state("SERVING")
