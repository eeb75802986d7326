"""Imports go one way: core <- engines, adapters <- the modules that put things together.

Read with `ast`, so that nothing has to be importable, and without a list of files: a new file
falls under the rules of its folder.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "caovand"
FILES = sorted(PACKAGE.rglob("*.py"))

# What reads a clock, draws a number, touches the world or tells somebody.
IMPURE = frozenset({
    "asyncio", "concurrent", "ctypes", "datetime", "fcntl", "ftplib", "getpass", "glob", "grp",
    "http", "io", "locale", "logging", "mmap", "multiprocessing", "os", "pathlib", "platform",
    "pwd", "queue", "random", "resource", "sched", "secrets", "select", "selectors", "shutil",
    "signal", "smtplib", "socket", "socketserver", "ssl", "subprocess", "sys", "syslog",
    "tempfile", "threading", "time", "urllib", "uuid",
})  # fmt: skip
FOUNDATIONS = ("caovand.adapters.safe_files", "caovand.adapters.trust")
IMPURE_BUILTINS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval"})


def name_of(file: Path) -> str:
    """The dotted name of a module; that of a package for its `__init__.py`."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in FILES}


def imports(name: str) -> Iterator[str]:
    """Modules that module `name` imports, wherever in the file, the most exact name known."""
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative imports hide where they go"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)


def layer(name: str) -> str:
    """core, engines, adapters, cli, or top for the modules beside those folders."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "top"


LAYERS = {
    "core": {"core"},
    "engines": {"core", "engines"},
    "adapters": {"core", "adapters"},
    "cli": {"core", "engines", "adapters", "cli", "top"},
    "top": {"core", "engines", "adapters", "top"},
}


def ours(name: str) -> list[str]:
    """Our own modules among the imports, packages that only bear a version left out."""
    return [m for m in imports(name) if m.startswith("caovand.")]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_only_layers_below_its_own(name: str) -> None:
    upward = [m for m in ours(name) if layer(m) not in LAYERS[layer(name)]]
    assert upward == []


@pytest.mark.parametrize("name", sorted(m for m in MODULES if layer(m) == "adapters"))
def test_an_adapter_imports_no_adapter_that_imports_adapters(name: str) -> None:
    """Small ones (a store, /proc, the pump) may serve others; they never form a tower.

    A folder is one adapter: what its files import of each other is its own affair. What a file may
    be opened for and who can change it are questions below all of them.
    """

    def adapter_of(module: str) -> list[str]:
        return module.split(".")[:3]

    def others(adapter: str) -> list[str]:
        return [
            m
            for m in ours(adapter)
            if layer(m) == "adapters"
            and m not in ("caovand.adapters", *FOUNDATIONS)
            and adapter_of(m) != adapter_of(adapter)
        ]

    assert [other for other in others(name) if others(other)] == []


@pytest.mark.parametrize("name", FOUNDATIONS)
def test_what_every_adapter_may_stand_on_stands_on_the_standard_library_alone(name: str) -> None:
    assert ours(name) == []
    assert {m.split(".")[0] for m in imports(name)} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", sorted(m for m in MODULES if layer(m) == "core"))
def test_core_imports_nothing_but_core_and_the_pure_standard_library(name: str) -> None:
    foreign = [
        m
        for m in imports(name)
        if layer(m) != "core"
        and (m.split(".")[0] in IMPURE or m.split(".")[0] not in sys.stdlib_module_names)
    ]
    assert foreign == []


@pytest.mark.parametrize("name", sorted(m for m in MODULES if layer(m) == "core"))
def test_core_neither_opens_nor_prints(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert called & IMPURE_BUILTINS == set()


@pytest.mark.parametrize("name", sorted(m for m in MODULES if layer(m) == "engines"))
def test_engines_are_pure_too(name: str) -> None:
    allowed = {"pathlib"}  # for building paths; the call of a method that reads one is an adapter's
    assert [m for m in imports(name) if m.split(".")[0] in IMPURE - allowed] == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_daemon_never_imports_the_engine_or_the_plugin(name: str) -> None:
    """A broken engine environment must not silence the supervisor."""
    banned = {"vllm", "torch", "transformers", "numpy", "caovan_vllm_sm75_turbo3", "plugin"}
    assert banned.isdisjoint(m.split(".")[0] for m in imports(name))


def test_the_plugin_never_imports_the_daemon() -> None:
    for file in (ROOT / "plugin").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not any(n.split(".")[0] == "caovand" for n in names), file


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name: set(ours(name)) & set(MODULES) for name in MODULES}
    while free := {name for name, needs in graph.items() if not needs & set(graph) - {name}}:
        graph = {name: needs for name, needs in graph.items() if name not in free}
    assert graph == {}


def is_release(node: ast.AST) -> bool:
    """Whether this is a literal such as (0, 22)."""
    if not isinstance(node, ast.Tuple) or len(node.elts) < 2:
        return False
    numbers = [one.value for one in node.elts if isinstance(one, ast.Constant)]
    return len(numbers) == len(node.elts) and numbers[0] == 0 and all(numbers[1:2])


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"caovand.core.releases"}))
def test_what_differs_between_releases_stands_in_one_place(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    compared = [one for node in ast.walk(tree) if isinstance(node, ast.Compare)
                for one in (node.left, *node.comparators)]  # fmt: skip
    named = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    assert not list(filter(is_release, compared + named)), "it belongs in core/releases.py"
