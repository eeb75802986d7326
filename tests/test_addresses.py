"""Every module is covered by tests, and none of them sleeps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.addresses import FACES, ROOT, addresses, faces, modules, own
from tests.source_trees import nodes, source

SLEEPERS = {
    "tests/patience.py": "the pause between two questions",
    "tests/hostile_engine.py": "a program of its own: the pause between two questions",
    "tests/two_nodes.py": "how long a link is cut",
    "tests/readers.py": "hostile readers: how slow they are",
    "tests/strangers.py": "hostile users: how slow they are, and how often a friend asks",
    "tests/adapters/process_tree.py": "an engine's processes, which live until they are ended",
    "tests/standin/": "stand-ins: how long an engine takes",
    "tests/bench/": "measurements over a time",
    "tests/cards/": "by hand, on a machine with cards: the state by the second",
    "tests/page/pictures.py": "by hand: minutes of work for the pictures",
}
"""Files and folders that may sleep, and what their sleep is."""


def sleeps(path: str) -> Iterator[int]:
    """The lines of a file that call a function `sleep`, but for `sleep(0)`: a turn of the loop."""
    if "sleep(" not in source(ROOT / path):
        return
    for node in nodes(ROOT / path):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name == "sleep" and [ast.unparse(argument) for argument in node.args] != ["0"]:
                yield node.lineno


def test_every_module_has_tests() -> None:
    assert [name for name in modules() if not addresses(name)] == []


def test_the_table_sends_to_tests_that_are_there() -> None:
    for name in FACES:
        for face in faces(name):
            assert face.exists(), name


@pytest.mark.parametrize(
    ("module", "test"),
    [
        ("caovand.core.config.schema", "tests/core/test_config.py"),  # of its name
        ("caovand.core.lifecycle.living", "tests/core/test_scenarios.py"),  # its room's
        ("caovand.cli.reset", "tests/cli/test_verbs.py"),  # the table's
    ],
)
def test_an_address_is_found_by_name_by_room_or_in_the_table(module: str, test: str) -> None:
    assert ROOT / test in addresses(module)


def test_a_module_without_a_test_has_no_address() -> None:
    assert own("caovand.core.nothing") == []
    assert faces("elsewhere.nothing") == []


def test_no_test_sleeps() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    allowed = tuple(SLEEPERS)
    found = {path: [*sleeps(path)] for path in sorted(files) if not path.startswith(allowed)}
    assert {path: lines for path, lines in found.items() if lines} == {}
    for entry in SLEEPERS:
        assert any(path.startswith(entry) and any(sleeps(path)) for path in files), entry
