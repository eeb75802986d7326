"""Find the code that asks an engine or a package for something that it lacks, by the frames."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

ENTRY = re.compile(
    r"/(?:vllm/(?:entrypoints|engine|v1/engine/(?:llm_engine|async_llm|core_client|utils)|utils)"
    r"|sglang/srt/(?:entrypoints|server\.py)|sglang/(?:api|launch_server)\.py|uvloop|asyncio)\b"
)
"""Code around the part that is missing in an excerpt."""
IMPORTS = "python.part"
"""The row of what a package lacks, which `importer` completes."""
MISMATCH = "engine.mismatch"
"""The row of calls that the called code does not accept, which `caller` completes."""
_ARGUMENTS = re.compile(
    r"(?:\w{0,20}EngineArgs|LLM|ServerArgs|Engine|SamplingParams|PoolingParams)\b"
)
"""Classes of engines that other programs pass arguments to."""
_ENGINES = frozenset({"vllm", "sglang"})
_IMPORTING = re.compile(r"importlib|^<|:(?:__getattr__|_get_module)$")
"""Code that imports for others, lazily."""
_ENGINE_MODULE = re.compile(r"(?:^|[._])(vllm|sglang)(?:[._]|$)")
"""A module that adapts an engine, and defines what the installed release of it allows."""
_STANDARD = re.compile(r"/lib(?:64)?/python3\.\d{1,2}/")


def importer(frames: Sequence[str], captures: Mapping[str, str]) -> Mapping[str, str]:
    """The program that imports a missing name, by the last frame: another one, or the package."""
    lacking = captures.get("package") or captures.get("of", "")
    own = [frame for frame in frames if not _IMPORTING.search(frame)]
    if not own:
        return {}
    file = own[-1].rpartition(":")[0]
    package = package_of(own[-1]) if "-packages/" in file else ""
    # A source tree has the package's folders below it; a single file there may be anyone's.
    part = file.rpartition(f"/{lacking}/")
    inside = package == lacking or (not package and bool(part[1]) and "/" in part[2])
    if inside and (engine := _ENGINE_MODULE.search(captures.get("module", ""))):
        return {"backend": engine[1].lower()}
    return {"mixed": lacking} if inside else {"importer": package or file.rpartition("/")[2]}


def caller(frames: Sequence[str], captures: Mapping[str, str]) -> Mapping[str, str]:
    """The caller that passes the engine an unknown argument, by the frames: the nearest code
    outside of the engine, a package or a script."""
    callee = captures.get("callee", "")
    if "module" in captures:
        return _user(frames, captures["module"])
    unnamed = callee == "__init__" and bool(frames) and ENTRY.search(frames[-1])  # before 3.10
    if not unnamed and not _ARGUMENTS.match(callee):
        return _owner(frames, captures)
    for frame in reversed(frames):
        file = frame.rpartition(":")[0]
        package = package_of(frame) if "-packages/" in file else ""
        inside = package in _ENGINES or (not package and ENTRY.search(frame))
        if inside or not file.endswith(".py") or (not package and _STANDARD.search(file)):
            continue
        return {"caller": package} if package else {"script": file.rpartition("/")[2]}
    return {}


def _user(frames: Sequence[str], module: str) -> Mapping[str, str]:
    """The package whose code asks another package's module for what it does not have."""
    asks, lib = package_of(frames[-1]) if frames else "", module.partition(".")[0]
    return {"asks": asks, "lib": lib} if asks and asks != lib and "." not in asks else {}


def _owner(frames: Sequence[str], captures: Mapping[str, str]) -> Mapping[str, str]:
    """The package, other than an engine, that calls its own class with an unknown argument."""
    package = package_of(frames[-1]) if frames and "argument" in captures else ""
    own = package and package not in (*_ENGINES, "transformers") and not package.endswith(".py")
    return {"owner": package, "renamed": captures["argument"]} if own else {}


def package_of(frame: str) -> str:
    """The package of a frame's file; "" for a file outside of packages."""
    return frame.rpartition("-packages/")[2].partition("/")[0]
