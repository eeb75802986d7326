"""Collect every regular expression of the package, in module globals and within functions."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDERS = ("caovand", "plugin")
METHODS = frozenset({"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"})
CALLS = METHODS | {"compile"}
# Builders of tables: what they are called with is found in the tables.
BUILDERS = frozenset(
    {
        "caovand.engines.common.logs.rows.raised._family",
        "caovand.engines.common.logs.signature.signature",
        "caovand.engines.common.logs.start_messages.start_message",
        "caovand.engines.vllm.log.phases._row",
    }
)


@dataclass(frozen=True)
class Found:
    """A pattern and its use: "match", "fullmatch", or "search", which stands for the rest."""

    where: str
    pattern: re.Pattern[Any]
    method: str

    def __str__(self) -> str:
        return f"{self.where} ({self.method}): {self.pattern.pattern!r:.200}"


def everything() -> list[Found]:
    """All of them, each once for each way it is used."""
    sources = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in files().items()}
    used = dict(uses(sources))
    found: dict[tuple[Any, int, str], Found] = {}
    for name in sources:
        if name.startswith("caovand") and not name.endswith("__main__"):
            module = importlib.import_module(name)
            for where, pattern in held(module):
                for method in used.get(where, ("search",)):
                    add(found, Found(where, pattern, method))
    for name, tree in sources.items():
        for one in inline(name, tree):
            # One with a name is held by its module, where that could be imported.
            if not any((one.pattern.pattern, one.pattern.flags) == key[:2] for key in found):
                add(found, one)
    return list(found.values())


def add(found: dict[tuple[Any, int, str], Found], one: Found) -> None:
    found.setdefault((one.pattern.pattern, one.pattern.flags, one.method), one)


def files() -> dict[str, Path]:
    """Modules by dotted name."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def held(module: ModuleType) -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Patterns in a module's attributes, however deep in its data."""
    for name, value in vars(module).items():
        if not name.startswith("__"):
            yield from inside(f"{module.__name__}.{name}", value, set())


def inside(where: str, value: Any, seen: set[int]) -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Patterns in a value: containers, dataclasses, other objects of the package."""
    if isinstance(value, re.Pattern):
        yield where, value
        return
    if id(value) in seen or isinstance(value, (str, bytes, int, float, ModuleType)):
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from inside(f"{where}[{key!r}]", key, seen)
            yield from inside(f"{where}[{key!r}]", entry, seen)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, entry in enumerate(value):
            yield from inside(f"{where}[{getattr(entry, 'id', index)}]", entry, seen)
    elif dataclasses.is_dataclass(value) or type(value).__module__.startswith("caovand"):
        for name, entry in list(getattr(value, "__dict__", {}).items()):
            yield from inside(f"{where}.{name}", entry, seen)


def uses(sources: Mapping[str, ast.AST]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """How each named pattern is used, by `NAME.method(` in the module that holds it."""
    for module, tree in sources.items():
        methods: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in METHODS
                and isinstance(node.value, ast.Name)
            ):
                kind = node.attr if node.attr in ("match", "fullmatch") else "search"
                methods.setdefault(node.value.id, set()).add(kind)
        for name, kinds in methods.items():
            yield f"{module}.{name}", tuple(sorted(kinds))


class Unknown(Exception):
    """A pattern that cannot be worked out of the code."""


def inline(module: str, tree: ast.AST, scope: str = "") -> Iterator[Found]:
    """Patterns in calls such as `re.search(r"...", text)`, in programs kept as text too."""
    constants = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    builders = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and f"{module}.{node.name}" in BUILDERS
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "re." in node.value:
            try:
                program = ast.parse(node.value)
            except (SyntaxError, ValueError):
                continue
            yield from inline(f"{module}:{node.lineno}", program)
        if not is_call_of_re(node) or node in builders:
            continue
        where = f"{module}:{node.lineno}"
        try:
            text = folded(node.args[0], constants)
        except Unknown as problem:
            raise AssertionError(f"{where}: {problem}; write the pattern as a constant") from None
        flags = flags_of(node)
        method = node.func.attr  # type: ignore[attr-defined]
        kind = method if method in ("match", "fullmatch") else "search"
        yield Found(where, re.compile(text, flags), kind)


def is_call_of_re(node: ast.AST) -> Any:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in CALLS
    )


def flags_of(call: ast.Call) -> int:
    """`re.M | re.I` of a call."""
    words = [node for argument in call.args[1:] for node in ast.walk(argument)]
    words += [node for keyword in call.keywords for node in ast.walk(keyword.value)]
    names = {n.attr for n in words if isinstance(n, ast.Attribute) and n.attr.isupper()}
    value = 0
    for name in names:
        value |= getattr(re, name)
    return value


def joined(node: ast.AST, constants: Mapping[str, ast.AST]) -> list[ast.expr]:
    """The values of a named table, `TABLE.values()`."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "values"
        and isinstance(node.func.value, ast.Name)
        and isinstance(table := constants.get(node.func.value.id), ast.Dict)
    ):
        return table.values
    raise Unknown(f"cannot tell what {ast.unparse(node)} joins")


def folded(node: ast.AST, constants: Mapping[str, ast.AST]) -> Any:
    """The text of an expression; what is escaped or put in at run time counts as a word."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return folded(node.left, constants) + folded(node.right, constants)
    if isinstance(node, ast.JoinedStr):
        return "".join(folded(part, constants) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return folded(node.value, constants)
    if isinstance(node, ast.Name) and node.id in constants:
        return folded(constants[node.id], {k: v for k, v in constants.items() if k != node.id})
    if (
        isinstance(node, ast.Attribute)
        and node.attr == "pattern"
        and isinstance(node.value, ast.Name)
    ):
        return folded(node.value, constants)
    if is_call_of_re(node):
        return folded(node.args[0], constants)  # type: ignore[attr-defined]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "escape":
            return "word"
        if node.func.attr == "encode":
            return folded(node.func.value, constants).encode()
        if node.func.attr == "join" and len(node.args) == 1:
            parts = [folded(part, constants) for part in joined(node.args[0], constants)]
            return folded(node.func.value, constants).join(parts)
    raise Unknown(f"cannot tell which pattern {ast.unparse(node)} is")
