"""Find the tests of a module: by rule, or by a table for modules that no test imports.

python -m tests.addresses caovand/core/config/schema.py    prints files for a narrow pytest
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORT = re.compile(r"^ *from (caovand[\w.]*) import (?:\(([^)]*)\)|([^\n(]+))", re.M)
WHOLE = re.compile(r"^ *import (caovand[\w.]*)", re.M)
CODE = re.compile(r"^(?:def |async def |class |@|[A-Za-z_]\w* *[:=]|if )", re.M)

FACES: Mapping[str, str] = {
    "caovand.__main__": "tests/scenarios",
    "caovand.adapters.files.installed": (
        "tests/adapters/test_environment_places.py tests/adapters/test_model_pull.py"
    ),
    "caovand.adapters.network.admitted": "tests/page tests/gateway",
    "caovand.adapters.network.daemon_socket": "tests/page tests/gateway",
    "caovand.adapters.network.free_port": "tests/adapters/test_environment_install.py",
    "caovand.adapters.engine_install": "tests/adapters/test_environment_install.py",
    "caovand.adapters.model_pull.named": "tests/cli/test_model_verbs.py",
    "caovand.adapters.ray_in_env": "tests/adapters/test_ray_in_env.py",
    "caovand.cli": "tests/cli/test_verbs.py tests/cli/test_caovanctl.py",
    "caovand.cli.cluster": "tests/cli/cluster",
    "caovand.cli.engine": "tests/cli/test_engine_verbs.py",
    "caovand.cli.incidents": "tests/cli/test_caovanctl.py",
    "caovand.cli.key": "tests/cli/test_key.py",
    "caovand.cli.model": "tests/cli/test_model_verbs.py",
    "caovand.core.api_key": "tests/core/test_config.py",
    "caovand.core.tuning": "tests/core/test_tuning.py",
    "caovand.daemon.engine.reading_process": "tests/daemon/test_reading.py",
    "caovand.engines.common": "tests/engines",
    "caovand.engines.explaining": "tests/engines",
    "caovand.engines.llamacpp.planning.loading": "tests/engines/llamacpp/test_planner.py",
    "caovand.engines.llamacpp.planning.steps": "tests/engines/llamacpp/test_planner.py",
    "caovand.engines.sglang.planning.loads": "tests/engines/sglang/test_planner.py",
    "caovand.engines.sglang.planning.settings": "tests/engines/sglang/test_planner.py",
    "caovand.engines.sglang.planning.sizing": "tests/engines/sglang/test_planner.py",
    "caovand.engines.vllm.serve_words": "tests/cli/test_public_commands.py",
    "caovand.gateway": "tests/gateway",
    "caovand.lab.bench": "tests/lab/test_bench.py",
    "caovand.lab.results": "tests/lab/test_bench.py tests/lab/test_soak.py",
    "caovand.lab.soak": "tests/lab/test_soak.py",
    "caovand.page": "tests/page",
    "caovand.preparation.memories": "tests/daemon/test_memories.py tests/daemon/test_take_over.py",
    "caovand.preparation.model": "tests/daemon/test_negative_scales.py",
    "caovand.preparation": "tests/daemon/test_confinement.py tests/daemon/test_inspection.py",
}
"""The tests that cover a module, or a whole package, from outside, where no rule below applies.

These are verbs, which the parser imports by name; programs, which run in processes of their own;
and code that all engines share.
"""


def name_of(file: Path) -> str:
    """The dotted name of a module; for an `__init__.py`, of its package."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def modules() -> Mapping[str, Path]:
    """Every module with code by its dotted name."""
    files = {name_of(file): file for file in sorted((ROOT / "caovand").rglob("*.py"))}
    return {name: file for name, file in files.items() if CODE.search(file.read_text("utf-8"))}


@functools.cache
def tests() -> tuple[Path, ...]:
    """Every test file."""
    return tuple(sorted((ROOT / "tests").rglob("test_*.py")))


@functools.cache
def imported(file: Path) -> frozenset[str]:
    """The modules of caovand that a file imports, and the names in them."""
    text = file.read_text("utf-8")
    found = set(WHOLE.findall(text))
    for source, many, few in IMPORT.findall(text):
        names = re.findall(r"(\w+)(?: as \w+)?", re.sub(r"#.*", "", many or few))
        found |= {source, *(f"{source}.{name}" for name in names)}
    return frozenset(found)


def own(module: str) -> list[Path]:
    """The tests named after the module; if there are none, the tests that import it."""
    parts = module.split(".")[1:]
    names = {f"test_{'_'.join(parts[-count:])}" for count in (1, 2, 3) if len(parts) >= count}
    named = [file for file in tests() if file.stem in names]
    importing = [file for file in tests() if module in imported(file)]
    return [file for file in named if file in importing] or named or importing


def callers(module: str) -> list[str]:
    """The modules that import it and lie in its package, in a subpackage or in a parent package."""
    room = module.rpartition(".")[0]
    return [
        name
        for name, file in modules().items()
        if module in imported(file)
        and (f"{name}.".startswith(f"{room}.") or room.startswith(name.rpartition(".")[0]))
    ]


def faces(module: str) -> list[Path]:
    """The table's entry for the module: the longest matching prefix."""
    while module not in FACES:
        module = module.rpartition(".")[0]
        if not module:
            return []
    return [ROOT / face for face in FACES[module].split()]


def addresses(module: str) -> list[Path]:
    """The tests of a module: its own, else its callers', else the table's."""
    by_callers = (own(name) for name in callers(module))
    return own(module) or next(filter(None, by_callers), []) or faces(module)


def main(files: Iterable[str]) -> None:
    """Print the test files of these modules, one a line."""
    found = {path for file in files for path in addresses(name_of(ROOT / file))}
    print("\n".join(sorted(str(path.relative_to(ROOT)) for path in found)))


if __name__ == "__main__":
    main(sys.argv[1:])
