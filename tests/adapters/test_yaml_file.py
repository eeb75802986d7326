"""YAML files, read by an engine's Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from caovand.adapters.files import yaml_file
from caovand.core.problem import ProblemError


def python(folder: Path, script: str) -> str:
    """Something that is run as an engine's Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_document_is_what_the_engines_library_reads(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("[1, 2]")
    assert yaml_file.read(str(tmp_path / "a.yml"), python(tmp_path, "cat")) == [1, 2]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo one >&2; echo 'line 2: bad' >&2; exit 1", "cannot: line 2: bad; correct the file"),
        ("exit 3", "exit status 3"),
        ("echo {", "Expecting"),
    ],
)
def test_a_file_that_it_cannot_read_is_named(tmp_path: Path, script: str, said: str) -> None:
    (tmp_path / "a.yml").write_text("x")
    with pytest.raises(ProblemError, match=rf"read {tmp_path}/a\.yml: .*{said}"):
        yaml_file.read(str(tmp_path / "a.yml"), python(tmp_path, script))


def test_a_file_or_a_python_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="absent: No such file"):
        yaml_file.read(str(tmp_path / "absent"), "/engine/python")
    (tmp_path / "a.yml").write_text("x")
    with pytest.raises(ProblemError, match=r"/no/python cannot: .*No such file"):
        yaml_file.read(str(tmp_path / "a.yml"), "/no/python")
