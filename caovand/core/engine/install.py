"""How an engine's environment is made and proven. Part of its record (`core.engine.record`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from caovand.core.problem import Problem

Build = Literal["cuda", "cpu"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A program that CMake builds here from a source archive that the lock names.

    `package` is the archive's distribution, `folder` the folder in it that CMake begins with,
    `target` what is built, which is also the program's name. `options` are CMake's for a build of a
    release, `prelude` is CMake code that runs before the project's own. `compiler_mib` is the
    memory that one compiler may need.
    """

    package: str
    folder: str
    target: str
    options: Callable[[Build, str], tuple[str, ...]]
    compiler_mib: Mapping[Build, int]
    prelude: str = ""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A server that is started once to prove an installation.

    `version` are the arguments with which it prints its version and ends. `model` is the content of
    a model that loads and answers at once, `suffix` the end of its file's name; `command` makes the
    command line from the program, the model's path and a loopback port.
    """

    version: tuple[str, ...]
    model: Callable[[], bytes]
    suffix: str
    command: Callable[[str, str, int], tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Imports:
    """What an engine's Python must import to prove that an installed environment works.

    The first of `modules` is the engine, whose `__version__` is the lock's. `kernels` is Python
    that loads the libraries with machine code; it runs only where they can load: in a CPU build,
    and with a card. It may use `attempt`, which imports a module or notes why not, `report`,
    `torch`, `importlib` and `sys`. `plugins` is a group of entry points, each of which is loaded.
    All this runs with `env`.
    """

    modules: tuple[str, ...]
    kernels: str
    plugins: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Install:
    """`versions` are the recommended releases by build.

    An engine without `source` comes in wheels and is proven by its `imports`; one with it is built
    here and proven by its `trial`. `takes_plugin`: caovan's plugin goes into a CUDA build. One from
    `elsewhere` is not installed here, as that problem says; caovan's own Python asks about it.
    """

    versions: Mapping[Build, str]
    source: Source | None = None
    trial: Trial | None = None
    imports: Imports | None = None
    takes_plugin: bool = False
    elsewhere: Problem | None = None
