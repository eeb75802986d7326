"""The modules of caovand, each parsed once for all tests that read them.

A single test checks all modules and names every one that fails; a test per module would cost more
than parsing it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")


@functools.cache
def source(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@functools.cache
def tree(file: Path) -> ast.Module:
    return ast.parse(source(file))


@functools.cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """Every node of a module's tree."""
    return tuple(ast.walk(tree(file)))


def offenders(names: Iterable[str], find: Callable[[str], Found]) -> dict[str, Found]:
    """The findings by module; modules without findings are left out."""
    return {name: found for name in names if (found := find(name))}
