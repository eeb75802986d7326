"""Benchmarks need a card; that each call fits the function it times with does not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    *ROOT.glob("plugin/caovan_vllm_sm75_turbo3/measure/*.py"),
    *ROOT.glob("csrc/bench/*.py"),
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_timing_takes_its_calls_and_names_everything_else(file: Path) -> None:
    """`median_us(calls, *, graph, repeats)`, also as a `partial` that sets `repeats`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name == "median_us":
                assert len(node.args) == 1, f"{file.name}:{node.lineno}"
                assert {word.arg for word in node.keywords} <= {"graph", "repeats"}
