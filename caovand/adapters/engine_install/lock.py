"""Lock files: the exact content of an engine, byte for byte.

A lock is a pip requirements file (every package pinned, the sha256 of every acceptable wheel named)
so that pip and uv read it unchanged. Comments of the form `# caovan: KEY = VALUE` add facts that
pip has no syntax for: which Python, how much disk, what to adapt afterwards. A comment `# N bytes`
under a pin is the size of its largest wheel. Pins that `source` names are source archives, from
which the engine is built here. Locks are resolved from `packaging/engines/*.in`.
"""

from __future__ import annotations

import hashlib
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_args

from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.files import safe_files
from caovand.core.engine.install import Build
from caovand.engines import registry

FIRST_KIND = "vllm"
"""The first kind of engine that caovan supported: its locks, links and markers do not name it."""
BUILDS: tuple[Build, ...] = get_args(Build)
ANY_PYTHON = "any"
MAX_BYTES = 1 << 20
ADAPTATIONS = ("torchvision-schemas", "vllm-distribution", "vllm-expand")
_HEADER = re.compile(r"^#\s*caovan:\s*([a-z-]+)\s*=(.*)$")
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.+!_-]*)$")
_TRAILING_ZEROS = re.compile(r"(?:\.0){1,9}$")
"""The trailing zeros of a version, which are insignificant."""
_HASH = re.compile(r"^--hash=sha256:([0-9a-f]{64})$")
_SIZE = re.compile(r"^#\s*(\d+) bytes$")
_HEADER_KEYS = {
    "version",
    "build",
    "python",
    "platform",
    "extra-index",
    "disk-mib",
    "adapt",
    "as-of",
    "without-dependencies",
    "override",
    "kind",
    "source",
}


@dataclass(frozen=True)
class Pin:
    """One package at one version; a file with any of these `sha256` is valid.

    `size_bytes` is 0 if the lock does not tell it.
    """

    name: str
    version: str
    sha256: tuple[str, ...]
    size_bytes: int

    @property
    def requirement(self) -> str:
        """The pin in the syntax of a requirements file."""
        hashes = (f"--hash=sha256:{digest}" for digest in self.sha256)
        return " \\\n    ".join([f"{self.name}=={self.version}", *hashes])

    def requirement_from(self, file: Path, digest: str) -> str:
        """The pin with one file of this sha256 as its source: uv accepts one hash per file."""
        return f"{self.name} @ {file.as_uri()} --hash=sha256:{digest}"


@dataclass(frozen=True)
class Lock:
    """A complete engine. `digest` identifies the exact lock file."""

    kind: str
    version: str
    build: Build
    python: str
    extra_index: str | None
    disk_mib: int
    adapt: tuple[str, ...]
    pins: tuple[Pin, ...]
    sources: frozenset[str]
    digest: str
    text: str

    @property
    def name(self) -> str:
        """The name of an engine made from this lock: `vllm-0.32.0-cpu`."""
        return f"{self.kind}-{self.version}-{self.build}"

    @property
    def title(self) -> str:
        """The name of its engine in messages: `vLLM`."""
        return registry.engine_of(self.kind).title

    @property
    def wheels(self) -> list[Pin]:
        """The pins that are unpacked: all but the source archives."""
        return [pin for pin in self.pins if pin.name not in self.sources]

    @property
    def download_bytes(self) -> int:
        return sum(pin.size_bytes for pin in self.pins)


def canonical(name: str) -> str:
    """A distribution's normalised name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def same_version(version: str, other: str) -> bool:
    """Whether two spellings mean the same version: 13.0.3 is 13.0.3.0."""
    return _TRAILING_ZEROS.sub("", version) == _TRAILING_ZEROS.sub("", other)


def header(text: str) -> dict[str, str]:
    """The `# caovan:` comments of a lock or its source; raises ValueError for an unknown key."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        if match := _HEADER.match(line):
            if match[1] not in _HEADER_KEYS:
                raise ValueError(f'unknown key "{match[1]}" in a "# caovan:" line')
            values[match[1]] = match[2].strip()
    return values


def parse(text: str, source: str) -> Lock:
    """Read a lock; `source` names it in errors. Raises EngineError for anything unexpected."""

    def bad(fact: str) -> EngineError:
        return EngineError(f"read the lock {source}", fact, "reinstall caovan's copy")

    try:
        head = {"kind": FIRST_KIND, "adapt": "", "source": "", **header(text)}
        disk_mib = int(head["disk-mib"])
        version, python, build = head["version"], head["python"], head["build"]
    except KeyError as error:
        raise bad(f'it has no "# caovan: {error.args[0]} = ..." line') from None
    except ValueError as error:
        raise bad(str(error)) from None
    for key, allowed in (("build", BUILDS), ("kind", registry.MODULES)):
        if head[key] not in allowed:
            raise bad(f'its {key} is "{head[key]}", not one of {", ".join(allowed)}')
    if python == ANY_PYTHON:
        python = "{}.{}".format(*sys.version_info)
    adapt = tuple(head["adapt"].split())
    for step in adapt:
        if step not in ADAPTATIONS:
            raise bad(f'it requests an unknown adaptation, "{step}"')
    pins: list[Pin] = []
    for line in map(str.strip, text.replace("\\\n", " ").splitlines()):
        if size := _SIZE.match(line):
            if pins:
                pins[-1] = replace(pins[-1], size_bytes=int(size[1]))
        elif line and not line.startswith("#"):
            pins.append(_parse_pin(line, bad))
    if not pins:
        raise bad("it pins no packages")
    names = [canonical(pin.name) for pin in pins]
    if twice := {name for name in names if names.count(name) > 1}:
        raise bad(f"it pins {', '.join(sorted(twice))} more than once")
    sources = frozenset(head["source"].split())
    if unpinned := sources - {pin.name for pin in pins}:
        raise bad(f"its source {', '.join(sorted(unpinned))} is not pinned")
    return Lock(
        kind=head["kind"],
        version=version,
        build=cast("Build", build),
        python=python,
        extra_index=head.get("extra-index"),
        disk_mib=disk_mib,
        adapt=adapt,
        pins=tuple(pins),
        sources=sources,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        text=text,
    )


def _parse_pin(line: str, bad: Callable[[str], EngineError]) -> Pin:
    first, *options = line.split()
    pin = _PIN.match(first)
    hashes = [_HASH.match(option) for option in options]
    if pin is None:
        raise bad(f'"{first}" is not of the form NAME==VERSION')
    if not hashes or not all(hashes):
        raise bad(f"{first} has no --hash=sha256:... or another option")
    return Pin(pin[1], pin[2], tuple(match[1] for match in hashes if match), 0)


def lock_folders() -> list[Path]:
    """Folders searched for lock files: `CAOVAN_LOCKS`, else a checkout's, then the installed
    one."""
    checkout = Path(__file__).resolve().parents[3] / "packaging" / "engines"
    prefixes = [sysconfig.get_path("data"), *([site.getuserbase()] * bool(site.ENABLE_USER_SITE))]
    installed = [Path(prefix, "share/caovan/engines") for prefix in (*prefixes, "/usr")]
    named = os.environ.get("CAOVAN_LOCKS")
    return [path for path in ([Path(named)] if named else [checkout, *installed]) if path.is_dir()]


def available_locks() -> dict[str, Path]:
    """Every available lock by its name, such as `cpu-0.32.0`; the first folder wins."""
    locks: dict[str, Path] = {}
    for folder in lock_folders():
        for path in sorted(folder.glob("*-*.txt")):
            locks.setdefault(path.stem, path)
    return locks


def load(build: Build, version: str | None, kind: str = FIRST_KIND) -> Lock:
    """Read the lock of an engine's build and version, the recommended one by default."""
    engine = registry.engine_of(kind)
    release = version or engine.install.versions.get(build, "")
    name = f"{build}-{release}" if kind == FIRST_KIND else f"{kind}-{build}-{release}"
    locks = available_locks()
    if name in locks:
        return parse(safe_files.read_text(locks[name], MAX_BYTES), str(locks[name]))
    remedy = f"available: {', '.join(sorted(locks))}"
    if not locks:
        remedy = (
            "all lock files are missing: reinstall caovan, or set CAOVAN_LOCKS to their"
            " folder (packaging/engines in a checkout)"
        )
    raise EngineError(
        f"install {engine.title} {release} ({build})", f"no lock file {name}.txt exists", remedy
    )
