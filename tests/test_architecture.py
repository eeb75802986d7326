"""Imports go one way: core <- engines, adapters <- the modules that combine them.

Read with `ast` and without a list of files: a new file falls under the rules of its folder.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.flags.table import FLAGS
from tests.source_trees import nodes, offenders, tree

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
FOUNDATIONS = (
    "caovand.adapters.confinement.call_filter",
    "caovand.adapters.confinement.popen",
    "caovand.adapters.files.safe_files",
    "caovand.adapters.files.trust",
    "caovand.adapters.privileges.capabilities",
    "caovand.adapters.privileges.engine_user",
    "caovand.adapters.privileges.helper",
    "caovand.adapters.privileges.link",
    "caovand.adapters.privileges.program",
    "caovand.adapters.privileges.spawner",
)
IMPURE_BUILTINS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval"})


def name_of(file: Path) -> str:
    """The dotted name of a module; that of a package for its `__init__.py`."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in FILES}


@functools.cache
def imports(name: str) -> tuple[str, ...]:
    """Modules that module `name` imports, wherever in the file, the most exact name known."""
    found: list[str] = []
    for node in nodes(MODULES[name]):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative imports hide where they go"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.append(full if full in MODULES else str(node.module))
    return tuple(found)


def layer(name: str) -> str:
    """The folder of a module, such as core; top for the modules next to those folders."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "top"


LAYERS = {
    "core": {"core"},
    "engines": {"core", "engines"},
    "adapters": {"core", "engines", "adapters"},
    "preparation": {"core", "engines", "adapters", "preparation"},
    "daemon": {"core", "engines", "adapters", "preparation", "daemon", "top"},
    "cli": {"core", "engines", "adapters", "preparation", "cli", "top"},
    "lab": {"core", "engines", "adapters", "cli", "lab", "top"},
    "page": {"core", "adapters", "page"},
    "gateway": {"core", "adapters", "gateway"},
    "top": {"core", "engines", "adapters", "daemon", "top"},
}


def ours(name: str) -> list[str]:
    """Our own modules among the imports, packages that only bear a version left out."""
    return [m for m in imports(name) if m.startswith("caovand.")]


def in_layer(*layers: str) -> list[str]:
    """The modules of these layers."""
    return [name for name in MODULES if layer(name) in layers]


def not_in_engines() -> list[str]:
    return in_layer(*(LAYERS.keys() - {"engines"}))


def test_a_module_imports_only_layers_below_its_own() -> None:
    def upward(name: str) -> list[str]:
        return [m for m in ours(name) if layer(m) not in LAYERS[layer(name)]]

    assert offenders(MODULES, upward).keys() == VERBS_OF_LAB.keys()


VERBS_OF_LAB = {
    "caovand.cli.bench": ["caovand.lab.bench.verb"],
    "caovand.cli.engine.try": ["caovand.cli.engine.shared", "caovand.lab.engine_trial"],
    "caovand.cli.fieldtest": ["caovand.lab.fieldtest.verb"],
    "caovand.cli.soak": ["caovand.lab.soak.verb"],
}
"""They stand where caovanctl finds its verbs, and have nothing but the record."""
DECISIONS = ("lifecycle", "healing", "cluster", "tuning", "gateway")
"""Folders of core whose facts the laboratory has from the status."""


@pytest.mark.parametrize(("verb", "whole"), VERBS_OF_LAB.items())
def test_a_verb_of_the_lab_is_its_record_alone(verb: str, whole: list[str]) -> None:
    assert ours(verb) == whole


def test_the_lab_knows_the_daemon_by_its_status_and_http_alone() -> None:
    inside = tuple(f"caovand.core.{folder}" for folder in DECISIONS)

    def knows(name: str) -> list[str]:
        engines = [m for m in ours(name) if layer(m) == "engines"]
        return [m for m in engines if m != "caovand.engines.registry"] + [
            m for m in ours(name) if m.startswith((*inside, "caovand.adapters.control"))
        ]

    assert offenders(in_layer("lab"), knows) == {}


LAB_CORE = "caovand.lab.core"


def pure() -> list[str]:
    """The modules that decide and touch nothing."""
    return [name for name in MODULES if layer(name) == "core" or name.startswith(LAB_CORE)]


SHARED = (
    "caovand.engines.registry", "caovand.engines.attribution", "caovand.engines.writer",
    "caovand.engines.common", "caovand.engines.explaining",
)  # fmt: skip


def test_nobody_imports_an_engine_but_through_the_registry() -> None:
    def direct(name: str) -> list[str]:
        return [m for m in ours(name) if layer(m) == "engines" and not m.startswith(SHARED)]

    assert offenders(not_in_engines(), direct) == {}


def test_no_engine_imports_another() -> None:
    """What two of them know lies in engines/common; only the registry loads them."""

    def others(name: str) -> list[str]:
        own = (".".join(name.split(".")[:3]), *SHARED)
        return [m for m in ours(name) if layer(m) == "engines" and not m.startswith(own)]

    assert offenders(in_layer("engines"), others) == {}


PLANNER = ("flags", "machine", "memory", "sizing", "planning")


def test_the_layers_of_vllms_planner_import_only_those_below() -> None:
    def floor(name: str) -> int:
        folder = name.removeprefix("caovand.engines.vllm.").split(".")[0]
        return PLANNER.index(folder) if folder in PLANNER else -1

    def upward(name: str) -> list[str]:
        return [m for m in ours(name) if floor(m) > floor(name)]

    assert offenders([name for name in MODULES if floor(name) >= 0], upward) == {}


def test_an_adapter_imports_no_adapter_that_imports_adapters() -> None:
    """Small ones (a store, /proc, the pump) may serve others; they never form a tower.

    A folder is one adapter: what its files import of each other is its own affair. What a file may
    be opened for, who can change it, as whom a program runs and what it may reach are questions
    below all of them.
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

    def towers(name: str) -> list[str]:
        return [other for other in others(name) if others(other)]

    assert offenders(in_layer("adapters"), towers) == {}


@pytest.mark.parametrize("name", FOUNDATIONS)
def test_what_every_adapter_may_stand_on_stands_on_the_standard_library_alone(name: str) -> None:
    assert set(ours(name)) <= {"caovand.adapters", *FOUNDATIONS}
    outside = {m.split(".")[0] for m in imports(name)} - {"caovand"}
    assert outside <= set(sys.stdlib_module_names)


def test_core_imports_nothing_but_core_and_the_pure_standard_library() -> None:
    def foreign(name: str) -> list[str]:
        return [
            m
            for m in imports(name)
            if layer(m) != "core"
            and not (name.startswith(LAB_CORE) and m.startswith(LAB_CORE))
            and (m.split(".")[0] in IMPURE or m.split(".")[0] not in sys.stdlib_module_names)
        ]

    assert offenders(pure(), foreign) == {}


def test_core_neither_opens_nor_prints() -> None:
    def impure(name: str) -> set[str]:
        return IMPURE_BUILTINS & {
            node.func.id
            for node in nodes(MODULES[name])
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }

    assert offenders(pure(), impure) == {}


def test_engines_are_pure_too() -> None:
    allowed = {"pathlib"}  # for building paths; the call of a method that reads one is an adapter's

    def impure(name: str) -> list[str]:
        return [m for m in imports(name) if m.split(".")[0] in IMPURE - allowed]

    assert offenders(in_layer("engines"), impure) == {}


def test_the_daemon_never_imports_the_engine_or_the_plugin() -> None:
    """A broken engine environment must not silence the supervisor."""
    banned = {"vllm", "torch", "transformers", "numpy", "caovan_vllm_sm75_turbo3", "plugin"}

    def of_an_engine(name: str) -> set[str]:
        return banned & {m.split(".")[0] for m in imports(name)}

    assert offenders(MODULES, of_an_engine) == {}


def test_the_plugin_never_imports_the_daemon() -> None:
    for file in (ROOT / "plugin").rglob("*.py"):
        for node in nodes(file):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not any(n.split(".")[0] == "caovand" for n in names), file


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name: set(ours(name)) & set(MODULES) for name in MODULES}
    while free := {name for name, needs in graph.items() if not needs & set(graph) - {name}}:
        graph = {name: needs for name, needs in graph.items() if name not in free}
    assert graph == {}


@functools.cache
def defined(name: str) -> set[str]:
    """What a module defines itself, at its top level."""
    found: set[str] = set()
    for node in nodes(MODULES[name]):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


# It moves to the engine's record, and takes this import along.
SECOND_HOMES = {"caovand.daemon.start.inspection": {"Unplannable"}}


def test_a_name_is_imported_from_where_it_is_defined() -> None:
    """A second way to a name makes two homes of one thing. A package may gather its own files'."""

    def elsewhere(name: str) -> set[str]:
        found: set[str] = set()
        for node in nodes(MODULES[name]):
            if not isinstance(node, ast.ImportFrom) or node.module not in MODULES:
                continue
            if MODULES[node.module].name == "__init__.py":
                continue
            names = {one.name for one in node.names if f"{node.module}.{one.name}" not in MODULES}
            found |= names - SECOND_HOMES.get(name, set()) - defined(node.module)
        return found

    assert offenders(MODULES, elsewhere) == {}


MAX_LINES = 350


def test_a_file_has_one_subject_and_at_most_350_lines() -> None:
    def long(name: str) -> list[str]:
        lines = MODULES[name].read_text(encoding="utf-8").count("\n")
        return [f"{lines} lines"] * (lines > MAX_LINES)

    assert offenders(MODULES, long) == {}


def is_release(node: ast.AST) -> bool:
    """Whether this is a literal such as (0, 22)."""
    if not isinstance(node, ast.Tuple) or len(node.elts) < 2:
        return False
    numbers = [one.value for one in node.elts if isinstance(one, ast.Constant)]
    return len(numbers) == len(node.elts) and numbers[0] == 0 and all(numbers[1:2])


def test_what_differs_between_releases_stands_in_one_place() -> None:
    def releases(name: str) -> list[str]:
        compared = [one for node in nodes(MODULES[name]) if isinstance(node, ast.Compare)
                    for one in (node.left, *node.comparators)]  # fmt: skip
        body = tree(MODULES[name]).body
        named = [node.value for node in body if isinstance(node, ast.Assign)]
        return [ast.unparse(one) for one in filter(is_release, compared + named)]

    others = MODULES.keys() - {"caovand.engines.vllm.releases"}
    assert offenders(others, releases) == {}, "it belongs in engines/vllm/releases.py"


# Flags whose names are also words of ours.
COMMON_WORDS = frozenset({"host", "port", "dtype", "revision", "quantization", "chat_template"})
KNOWS_VLLM = {
    "caovand.adapters.model_folder.drafter": "a key of config.json, and whose flag a remedy names",
    "caovand.adapters.files.config_file": "names the flag that brings the API key, in its message",
    "caovand.cli.doctor": "an example of its words, which are vLLM's flags",
    "caovand.cli.explain": "labels for the figures that are read from a log",
    "caovand.cli.mode": "shows which setting a mode changes",
    "caovand.cli.serve": "stands in for `vllm serve`",
    "caovand.core.config.schema": "says in its help which flag a key becomes",
    "caovand.core.plan": "the settings that every engine has go by vLLM's names",
    "caovand.core.reporting.report": "keys of a public document",
    "caovand.core.gateway.protocol": "lists models with the key that clients read",
    "caovand.gateway.application": "answers at /health itself",
}


def texts(name: str) -> Iterator[str]:
    """String literals of a module, docstrings left out."""
    docstrings = {id(node.value) for node in nodes(MODULES[name]) if isinstance(node, ast.Expr)}
    for node in nodes(MODULES[name]):
        literal = isinstance(node, ast.Constant) and id(node) not in docstrings
        if literal and isinstance(node.value, str):
            yield node.value


FLAG_NAMES = {row.name for row in FLAGS} - COMMON_WORDS
OPTIONS = {"--" + name.replace("_", "-") for name in FLAG_NAMES}


def of_vllm(text: str) -> bool:
    """Whether a text names one of vLLM's flags, variables or endpoints."""
    api = ENGINE.api
    return (
        text in FLAG_NAMES
        or text in (api.health, api.metrics, api.pending, api.completions)
        or bool(OPTIONS & set(re.findall(r"--[a-z-]+", text)))
        or bool(re.search(r"\bVLLM_[A-Z]", text))
    )


def test_flags_variables_and_endpoints_of_vllm_are_named_in_its_folder_alone() -> None:
    names = [name for name in not_in_engines() if name not in KNOWS_VLLM]
    assert offenders(names, lambda name: [text for text in texts(name) if of_vllm(text)]) == {}


@pytest.mark.parametrize("name", KNOWS_VLLM)
def test_who_is_excused_from_that_needs_it(name: str) -> None:
    modules = [m for m in MODULES if m == name or m.startswith(name + ".")]
    assert any(of_vllm(text) for module in modules for text in texts(module))


# A pattern of each engine's words, and the modules that know them nevertheless, with the reason.
KINDS = "says in its help which kinds there are"
OTHERS = {
    r"llama\.?cpp|llama-server|\bLLAMA_[A-Z]|\bGGML_[A-Z]": {
        "caovand.cli.engine": "an example of its words",
        "caovand.core.config.schema": f"{KINDS}, and when this one is chosen",
    },
    r"\b[Oo]llama\b|\bOLLAMA_[A-Z]": {"caovand.core.config.schema": f"{KINDS}, and their names"},
    r"\b[Ss][Gg][Ll]ang\b|\bSGLANG_[A-Z]": {"caovand.core.config.schema": KINDS},
}


@pytest.mark.parametrize("pattern", OTHERS)
def test_an_engine_is_named_in_its_folder_alone(pattern: str) -> None:
    def naming(name: str) -> list[str]:
        return [text for text in texts(name) if re.search(pattern, text)]

    assert offenders(not_in_engines(), naming).keys() == OTHERS[pattern].keys()


def test_the_compute_capabilities_of_a_generation_are_named_in_one_module() -> None:
    home = "caovand.engines.vllm.machine.capabilities"
    known = {
        ast.dump(one.value): ast.unparse(one.targets[0])
        for one in tree(MODULES[home]).body
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Tuple)
    }
    assert "TURING" in known.values()
    for name, file in MODULES.items():
        if name != home and name.startswith("caovand.engines.vllm"):
            for node in tree(file).body:
                if isinstance(node, ast.Assign):
                    assert ast.dump(node.value) not in known, f"{name}: {ast.unparse(node)}"
