"""`caovanctl model pull --from ollama`: by a server of the stand-in's, started for the download."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from caovand.adapters.system import processes
from caovand.engines.ollama.names import read_step
from tests import tiny_gguf
from tests.engines.ollama.store import add_program


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A PATH with the stand-in, its library with one model, and no model here."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library/tiny-1b.gguf").write_bytes(tiny_gguf.make("llama"))
    add_program(tmp_path / "bin")
    own = {f"{name}_DIRECTORY": str(tmp_path / name) for name in ("RUNTIME", "STATE", "CACHE")}
    return {
        **os.environ,
        **own,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "OLLAMA_MODELS": str(tmp_path / "models"),
        "STANDIN_LIBRARY": str(tmp_path / "library"),
    }


def pull(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "caovand.cli.main", "model", "pull", "--from", "ollama"]
    return subprocess.run(
        [*command, *words], cwd="/", env=environ, capture_output=True, text=True, check=False
    )


def running_in(folder: Path) -> Iterator[int]:
    """The processes with this folder in their environment."""
    for one in processes.all_processes():
        with suppress(OSError):
            if os.fsencode(folder) in Path(f"/proc/{one.pid}/environ").read_bytes():
                yield one.pid


def test_a_model_is_pulled_with_progress_and_no_server_stays(
    environ: dict[str, str], tmp_path: Path
) -> None:
    done = pull(environ, "tiny:1b")
    assert done.returncode == 0, done.stderr
    assert "100 %" in done.stderr
    assert "pulling manifest" in done.stderr
    assert '[model] path = "tiny:1b" and [engine] kind = "ollama"' in done.stdout
    assert list(running_in(tmp_path)) == []
    assert pull(environ, "tiny:1b", "--json").returncode == 0


@pytest.mark.parametrize(
    ("words", "more", "said"),
    [
        (("tiny:8b",), {}, "cannot pull tiny:8b: pull model manifest: file does not exist"),
        (("tiny:1b",), {"STANDIN_CUT": "1"}, "the download ended early"),
        (("/srv/model",), {}, "it is not the name of an Ollama model"),
        (("tiny:1b", "--to", "/srv"), {}, "cannot pull tiny:1b with --to"),
        (("tiny:1b",), {"PATH": "/nonexistent"}, "no program `ollama`"),
    ],
)
def test_what_cannot_be_pulled_is_named(
    environ: dict[str, str], words: tuple[str, ...], more: dict[str, str], said: str
) -> None:
    done = pull({**environ, **more}, *words)
    assert done.returncode == 1
    assert said in done.stderr


def test_what_is_no_size_is_no_progress() -> None:
    step = read_step({"status": "pulling", "completed": "3", "total": -1})
    assert (step.done, step.total, step.complete) == (0, 0, False)
    assert read_step({"status": "x", "completed": 9, "total": 4}).done == 4
    assert read_step({"error": ["odd"]}).error == "['odd']"
