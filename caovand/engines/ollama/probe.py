"""Find Ollama: the program, its release, and whether it can use NVIDIA cards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from caovand.core.engine.install import Install
from caovand.core.engine.probe import ProbeScripts
from caovand.core.facts.inventory import EngineInfo
from caovand.core.problem import Problem

HOW = "curl -fsSL https://ollama.com/install.sh | sh"
INSTALL = Install(
    versions={},
    elsewhere=Problem(
        "install Ollama",
        "Ollama installs and updates itself, outside caovan",
        f"install it with `{HOW}`, and stop its own service, which would also use the cards: "
        "`sudo systemctl disable --now ollama`",
    ),
)
_FIND_PROGRAM = """
import json, os, shutil, subprocess

program = shutil.which("ollama", path=os.environ.get("PATH", os.defpath) + ":/usr/local/bin")
"""
# Its libraries are next to the program's folder; a container may have a card without PCI.
VERSIONS = (
    _FIND_PROGRAM
    + """
import glob, platform

program = program and os.path.realpath(program)
home = os.path.dirname(os.path.dirname(program)) if program else ""
libraries = glob.glob(home + "/lib/ollama/cuda_v*") if program else []
card = any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg")))
seen = os.stat(program) if program else None
print(MARK + json.dumps({
    "executable": program, "cuda": bool(libraries) and card,
    "releases": sorted(os.path.basename(library)[len("cuda_v"):] for library in libraries),
    "python_version": platform.python_version(),
    "stamp": [program, seen and seen.st_mtime_ns, seen and seen.st_size],
}))
"""
)
# Without a server to ask, it prints its own version instead of a running server's.
DETAILS = (
    _FIND_PROGRAM
    + """
environ = {**os.environ, "OLLAMA_HOST": "127.0.0.1:1"}
done = subprocess.run([program, "--version"], capture_output=True, text=True, errors="replace",
                      env=environ, stdin=subprocess.DEVNULL)
print(MARK + json.dumps({"version": done.stdout + done.stderr}))
"""
)
_VERSION = re.compile(r"version is v?(\d[\w.+-]{0,60})")


def _missing_program(first: Mapping[str, Any]) -> str:
    return "" if first["executable"] else "ollama"


def _parse_answers(python: str, first: Mapping[str, Any], rest: Mapping[str, Any]) -> EngineInfo:
    version = _VERSION.search(str(rest.get("version", "")))
    return EngineInfo(
        python=python,
        version=version[1] if version else "",
        torch="",
        build="cuda" if first["cuda"] else "cpu",
        cuda=min(first.get("releases", ()), default=None),
        python_version=str(first["python_version"]),
        executable=str(first["executable"]),
    )


PROBE = ProbeScripts(
    module=__name__,
    name="Ollama",
    install=HOW,
    versions=VERSIONS,
    details=DETAILS,
    asked=frozenset({"version"}),
    env={},
    lacking=_missing_program,
    read=_parse_answers,
    missing=Problem(
        "use Ollama as the engine",
        "no program `ollama` is on PATH or in /usr/local/bin",
        f"install it: {HOW}",
    ),
)
