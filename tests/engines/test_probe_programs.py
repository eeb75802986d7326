"""The programs that probes run in an engine's own Python: strings, which no linter reads."""

from __future__ import annotations

import ast
import builtins

import pytest

from caovand.engines import registry

PROGRAMS = {
    f"{name} {part}": getattr(registry.engine_of(name).probe, part)
    for name in registry.MODULES
    for part in ("versions", "details")
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_uses_no_name_that_it_does_not_define(program: str) -> None:
    tree = ast.parse(program, feature_version=(3, 10))
    defined = {"MARK", *dir(builtins)}
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            defined |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)):
            defined.add(node.name or "")
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
    assert used - defined == set()
