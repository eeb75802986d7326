"""`caovan-vllm-serve --exec` uses the same caches as the daemon's engines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caovand.adapters import model_folder
from caovand.cli import serve
from caovand.cli.common import survey
from caovand.core.config.schema import EngineSection
from tests.core.machines import CUDA, HOST, QWEN_27B_AWQ, turing


@pytest.mark.parametrize("others_may_write", [False, True])
def test_vllm_finds_what_other_plans_found_out_of_models(
    others_may_write: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777 if others_may_write else 0o755)
    for name in ("RUNTIME", "STATE", "CACHE", "LOGS"):
        monkeypatch.setenv(f"{name}_DIRECTORY", str(tmp_path / name.lower()))
    monkeypatch.setattr(serve, "become_daemon", lambda *asked: None)
    monkeypatch.setattr(model_folder, "read_model", lambda path, weights: QWEN_27B_AWQ)
    monkeypatch.setattr(
        serve, "inspect", lambda *asked: survey.SurveyedMachine(turing(2), HOST, CUDA)
    )
    monkeypatch.setattr(serve, "_engine", lambda: (EngineSection(), None))
    began: list[str] = []
    monkeypatch.setattr(os, "execve", lambda python, argv, env: began.append(python))
    monkeypatch.setattr(os, "chdir", lambda path: None)
    serve.main(["--exec", QWEN_27B_AWQ.path])
    assert began
    links = [path.readlink() for path in cache.glob("*/vllm/modelinfos")]
    assert [path.parent for path in links] == ([] if others_may_write else [cache / "modelinfos"])
