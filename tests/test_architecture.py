"""Imports go one way: core <- engines, adapters <- the modules that put things together.

Read with `ast` and without a list of files: a new file falls under the rules of its folder.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.planning.flag_table import FLAGS

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
    """core, engines, adapters, daemon, cli, or top for the modules beside those folders."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "top"


LAYERS = {
    "core": {"core"},
    "engines": {"core", "engines"},
    "adapters": {"core", "engines", "adapters"},
    "daemon": {"core", "engines", "adapters", "daemon", "top"},
    "cli": {"core", "engines", "adapters", "daemon", "cli", "top"},
    "top": {"core", "engines", "adapters", "daemon", "top"},
}


def ours(name: str) -> list[str]:
    """Our own modules among the imports, packages that only bear a version left out."""
    return [m for m in imports(name) if m.startswith("caovand.")]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_only_layers_below_its_own(name: str) -> None:
    upward = [m for m in ours(name) if layer(m) not in LAYERS[layer(name)]]
    assert upward == []


SHARED = ("caovand.engines.registry", "caovand.engines.common")
ENGINES_OWN = {
    "caovand.cli.serve": "caovan-vllm-serve reads the words of `vllm serve`",
}


@pytest.mark.parametrize("name", sorted(m for m in MODULES if layer(m) != "engines"))
def test_nobody_imports_an_engine_but_through_the_registry(name: str) -> None:
    direct = [m for m in ours(name) if layer(m) == "engines" and not m.startswith(SHARED)]
    assert bool(direct) == (name in ENGINES_OWN), direct


@pytest.mark.parametrize("name", sorted(m for m in MODULES if layer(m) == "engines"))
def test_no_engine_imports_another(name: str) -> None:
    """What two of them know lies in engines/common; only the registry loads them."""
    own = ".".join(name.split(".")[:3])
    others = [m for m in ours(name) if layer(m) == "engines" and not m.startswith((own, *SHARED))]
    assert others == []


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


def defined(name: str) -> set[str]:
    """What a module defines itself, at its top level."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


# It moves to the engine's record, and takes this import along.
SECOND_HOMES = {"caovand.daemon.inspection": {"Unplannable"}}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_name_is_imported_from_where_it_is_defined(name: str) -> None:
    """A second way to a name makes two homes of one thing. A package may gather its own files'."""
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or node.module not in MODULES:
            continue
        if MODULES[node.module].name == "__init__.py":
            continue
        names = {alias.name for alias in node.names if f"{node.module}.{alias.name}" not in MODULES}
        names -= SECOND_HOMES.get(name, set())
        assert names <= defined(node.module), f"{node.module} does not define them"


def is_release(node: ast.AST) -> bool:
    """Whether this is a literal such as (0, 22)."""
    if not isinstance(node, ast.Tuple) or len(node.elts) < 2:
        return False
    numbers = [one.value for one in node.elts if isinstance(one, ast.Constant)]
    return len(numbers) == len(node.elts) and numbers[0] == 0 and all(numbers[1:2])


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"caovand.engines.vllm.releases"}))
def test_what_differs_between_releases_stands_in_one_place(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    compared = [one for node in ast.walk(tree) if isinstance(node, ast.Compare)
                for one in (node.left, *node.comparators)]  # fmt: skip
    named = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    assert not list(filter(is_release, compared + named)), "it belongs in engines/vllm/releases.py"


# Flags whose names are also words of ours.
COMMON_WORDS = frozenset({"host", "port", "dtype", "revision", "quantization", "chat_template"})
KNOWS_VLLM = {
    "caovand.adapters.config_file": "names the flag that brings the API key, in its message",
    "caovand.adapters.engine_install": "makes and checks environments of vLLM",
    "caovand.cli.doctor": "an example of its words, which are vLLM's flags",
    "caovand.cli.explain": "labels for the figures that are read from a log",
    "caovand.cli.mode": "shows which setting a mode changes",
    "caovand.cli.serve": "stands in for `vllm serve`",
    "caovand.core.config": "says in its help which flag a key becomes",
    "caovand.core.plan": "the settings that every engine has go by vLLM's names",
    "caovand.core.reporting.report": "keys of a public document",
}


def texts(name: str) -> Iterator[str]:
    """String literals of a module, docstrings left out."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        literal = isinstance(node, ast.Constant) and id(node) not in docstrings
        if literal and isinstance(node.value, str):
            yield node.value


def of_vllm(text: str) -> bool:
    """Whether a text names one of vLLM's flags, variables or endpoints."""
    names = {row.name for row in FLAGS} - COMMON_WORDS
    options = {"--" + name.replace("_", "-") for name in names}
    api = ENGINE.api
    return (
        text in names
        or text in (api.health, api.metrics, api.pending, api.completions)
        or bool(options & set(re.findall(r"--[a-z-]+", text)))
        or bool(re.search(r"\bVLLM_[A-Z]", text))
    )


@pytest.mark.parametrize("name", sorted(m for m in MODULES if layer(m) != "engines"))
def test_flags_variables_and_endpoints_of_vllm_are_named_in_its_folder_alone(name: str) -> None:
    found = [text for text in texts(name) if of_vllm(text)]
    excused = name in KNOWS_VLLM or name.startswith("caovand.adapters.engine_install")
    assert excused or found == []


@pytest.mark.parametrize("name", KNOWS_VLLM)
def test_who_is_excused_from_that_needs_it(name: str) -> None:
    modules = [m for m in MODULES if m == name or m.startswith(name + ".")]
    assert any(of_vllm(text) for module in modules for text in texts(module))


OF_LLAMACPP = re.compile(r"llama\.?cpp|llama-server|\bLLAMA_[A-Z]|\bGGML_[A-Z]")
KNOWS_LLAMACPP = {
    "caovand.cli.engine": "an example of its words",
    "caovand.core.config": "says in its help which kinds there are, and when this one is chosen",
}


@pytest.mark.parametrize("name", sorted(m for m in MODULES if layer(m) != "engines"))
def test_llama_cpp_is_named_in_its_folder_alone(name: str) -> None:
    found = [text for text in texts(name) if OF_LLAMACPP.search(text)]
    assert bool(found) == (name in KNOWS_LLAMACPP), found


OF_OLLAMA = re.compile(r"\b[Oo]llama\b|\bOLLAMA_[A-Z]")
KNOWS_OLLAMA = {"caovand.core.config": "says in its help which kinds there are, and their names"}


@pytest.mark.parametrize("name", sorted(m for m in MODULES if layer(m) != "engines"))
def test_ollama_is_named_in_its_folder_alone(name: str) -> None:
    found = [text for text in texts(name) if OF_OLLAMA.search(text)]
    assert bool(found) == (name in KNOWS_OLLAMA), found


OF_SGLANG = re.compile(r"\b[Ss][Gg][Ll]ang\b|\bSGLANG_[A-Z]")
KNOWS_SGLANG = {"caovand.core.config": "says in its help which kinds there are"}


@pytest.mark.parametrize("name", sorted(m for m in MODULES if layer(m) != "engines"))
def test_sglang_is_named_in_its_folder_alone(name: str) -> None:
    found = [text for text in texts(name) if OF_SGLANG.search(text)]
    assert bool(found) == (name in KNOWS_SGLANG), found


def test_the_compute_capabilities_of_a_generation_are_named_in_one_module() -> None:
    home = "caovand.engines.vllm.capabilities"
    named = ast.parse(MODULES[home].read_text(encoding="utf-8")).body
    known = {
        ast.dump(one.value): ast.unparse(one.targets[0])
        for one in named
        if isinstance(one, ast.Assign)
    }
    assert "TURING" in known.values()
    for name, file in MODULES.items():
        if name != home and name.startswith("caovand.engines.vllm"):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Assign):
                    assert ast.dump(node.value) not in known, f"{name}: {ast.unparse(node)}"
