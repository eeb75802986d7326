"""The installation of an engine's environment, and its proof. Part of an engine's record
(`core.engine.record`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from caovand.core.problem import Problem

Build = Literal["cuda", "cpu"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A program that CMake builds on this machine from a source archive that the lock file pins.

    `package` is the archive's distribution, `folder` the folder of the top CMakeLists.txt, `target`
    both the build target and the program's name. `options` are CMake's for a release build;
    `prelude` is CMake code that runs before the project's own. `compiler_mib` is the memory that
    one compiler process may need.
    """

    package: str
    folder: str
    target: str
    options: Callable[[Build, str], tuple[str, ...]]
    compiler_mib: Mapping[Build, int]
    prelude: str = ""


@dataclass(frozen=True, kw_only=True)
class ProofServer:
    """A server that is started once to prove an installation.

    `version` are the arguments that print the version. `model` is the content of a tiny model that
    loads and answers at once, `suffix` its file name's extension; `command` builds the command line
    from the program, the model's path and a loopback port.
    """

    version: tuple[str, ...]
    model: Callable[[], bytes]
    suffix: str
    command: Callable[[str, str, int], tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Imports:
    """Modules that an engine's Python must import to prove that its environment works.

    The first of `modules` is the engine; its `__version__` must match the lock file. `kernels` is
    Python code that loads the compiled libraries; it runs only where they can load: in a CPU build,
    or on a machine with a card. It may use `attempt`, which imports a module or records why it
    cannot, `report`, `torch`, `importlib` and `sys`. `plugins` is a group of entry points, all of
    which are loaded. Everything runs with `env`.
    """

    modules: tuple[str, ...]
    kernels: str
    plugins: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Install:
    """`versions` are the recommended releases by build.

    An engine without `source` comes in wheels and is proven by its `imports`; one with it is built
    here and proven by its `trial`. `takes_plugin`: caovan's plugin goes into a CUDA build. An
    engine with `elsewhere` is not installed by caovan, as that problem explains; caovan's own
    Python queries it.
    """

    versions: Mapping[Build, str]
    source: Source | None = None
    trial: ProofServer | None = None
    imports: Imports | None = None
    takes_plugin: bool = False
    elsewhere: Problem | None = None
