"""Asks an engine's own Python what is installed there, without importing vLLM where that serves.

The versions cost 0.2 s and are asked each time. The flags need vLLM imported (8 s and more, half a
minute from a cold disk), so they are kept in a file named by a fingerprint of the environment.
Who cannot wait so long has them asked by a process of its own, which keeps them for the next time.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from caovand.adapters import store, trust
from caovand.adapters.processes import inherited
from caovand.core.inventory import EngineInfo

MARK = "caovan-probe:"
# It may take a minute; without this a probe would outlive a daemon that is killed meanwhile.
ENDS_WITH_US = "import ctypes; ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL\n"
VERSIONS = """
import importlib.metadata as metadata, importlib.util, json, os, platform, re, shutil, sys

def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

def folder(name):
    spec = importlib.util.find_spec(name)
    return os.path.dirname(spec.origin) if spec and spec.origin else None

def torch_cuda():
    place = folder("torch")
    try:
        with open(os.path.join(place, "version.py")) as source:
            found = re.search(r"^cuda[^=]*= *'([^']+)'", source.read(), re.M)
    except (OSError, TypeError):
        return None
    return found and found.group(1)

def nvcc():  # as flashinfer.jit.cpp_ext.get_cuda_path looks for it
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = None if home else shutil.which("nvcc")
    return found or shutil.which("nvcc", path=os.path.join(home or "/usr/local/cuda", "bin"))

vllm, ours = folder("vllm"), folder("caovan_vllm_sm75_turbo3")
print("caovan-probe:" + json.dumps({
    "vllm": version("vllm"), "torch": version("torch"), "cuda": torch_cuda(),
    "flashinfer": version("flashinfer-python"), "plugin": version("caovan-vllm-sm75-turbo3"),
    "python_version": platform.python_version(),
    "nvcc": nvcc(), "jit_cache": version("flashinfer-jit-cache"),
    "compiler": os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc"),
    "stamp": [sys.version, vllm, vllm and os.stat(vllm).st_mtime_ns,
              ours, ours and os.stat(ours).st_mtime_ns, sorted(
        (e.name, e.value) for e in metadata.entry_points(group="vllm.general_plugins"))],
}))
"""
FLAGS = """
import json
from vllm.platforms import current_platform
if not current_platform.device_type:
    # No GPU is visible, which is told elsewhere: the parser's defaults want a kind of device.
    current_platform.device_type = "cuda"
import vllm.entrypoints.cli.serve as serve
parser = serve.make_arg_parser(serve.FlexibleArgumentParser())
options = [(o, a) for a in parser._actions for o in a.option_strings]
marked = getattr(serve.FlexibleArgumentParser, "_deprecated", ())
def registered(module, name):
    try:
        manager = getattr(__import__(module, fromlist=[name]), name)
        return sorted(manager.list_registered())
    except Exception:
        return []
def architectures():
    try:
        from vllm.model_executor.models.registry import ModelRegistry
        return sorted(ModelRegistry.get_supported_archs())
    except Exception:
        return []
def plugin():
    try:
        from caovan_vllm_sm75_turbo3 import probe
        interface, operators = probe.describe_interface()
        return {"gdn_interface": interface, "operators": operators,
                "library_problem": probe.describe_library().get("error", "")}
    except Exception:
        return {}
print("caovan-probe:" + json.dumps({**plugin(), "architectures": architectures(),
    "flags": sorted(o for o, a in options),
    "switches": sorted(o for o, a in options if a.nargs == 0),
    "deprecated": sorted(o for o, a in options if a in marked or getattr(a, "deprecated", False)
                         or "is deprecated" in (a.help or "")),
    "choices": {o: sorted(map(str, a.choices)) for o, a in options if a.choices},
    "tool_parsers": registered("vllm.tool_parsers", "ToolParserManager"),
    "reasoning_parsers": registered("vllm.reasoning", "ReasoningParserManager"),
}))
"""
ASKED = frozenset({"flags", "deprecated", "choices", "tool_parsers", "reasoning_parsers"})
TIMEOUT_S = 60.0
BESIDE = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from caovand.adapters import probe
sys.exit(probe.tell(*sys.argv[1:]))
"""
QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


class EngineMissing(Exception):
    """There is no usable vLLM behind this Python; says what to do."""


def probe_engine(
    python: str,
    cache_dir: Path | None,
    timeout_s: float = TIMEOUT_S,
    patience_s: float | None = None,
    *,
    named_by: Path | None = None,
    also_kept_in: Path | None = None,
) -> EngineInfo:
    """What this Python has of vLLM; the slow answers are kept in `cache_dir` where one is given.

    `named_by` is the file that names it: root asks what another names as that other only. Answers
    `also_kept_in` another's folder are read there. With `patience_s` they are waited for no longer
    than that: `flags` and what comes with them are empty then, and are being asked beside us.
    """
    begun_s = time.monotonic()
    found = _ask(python, VERSIONS, timeout_s, named_by)
    if not found["vllm"] or not found["torch"]:
        lacking = "vLLM" if not found["vllm"] else "PyTorch"
        raise EngineMissing(
            f"cannot use {python} as the engine: {lacking} is not installed in it; "
            "install an engine with `caovanctl engine install`, or set [engine] python"
        )
    name = _cache_name(python, found.pop("stamp"), found)
    folders = (folder for folder in (cache_dir, also_kept_in) if folder)
    kept = next(filter(None, (_kept(folder / name) for folder in folders)), None)
    if kept is None and cache_dir is not None and patience_s is not None:
        left_s = max(patience_s - (time.monotonic() - begun_s), 0.0)
        more = _ask_beside(python, cache_dir / name, timeout_s, named_by, left_s)
    else:
        place = cache_dir / name if cache_dir else None
        more = kept or _ask_and_keep(python, place, timeout_s, named_by)
    return EngineInfo(
        python=python,
        build="cpu" if _is_cpu(found) else "cuda",
        flags=frozenset(more.get("flags", ())),
        switches=frozenset(more.get("switches", ())),
        deprecated=frozenset(more.get("deprecated", ())),
        choices=tuple(sorted((k, tuple(v)) for k, v in more.get("choices", {}).items())),
        tool_parsers=frozenset(more.get("tool_parsers", ())),
        reasoning_parsers=frozenset(more.get("reasoning_parsers", ())),
        architectures=frozenset(more.get("architectures", ())),
        gdn_interface=str(more.get("gdn_interface", "")),
        operators=tuple(more.get("operators", ())),
        library_problem=str(more.get("library_problem", "")),
        **found,
    )


def _is_cpu(found: dict[str, Any]) -> bool:
    return "+cpu" in found["vllm"] or ("+cpu" in found["torch"] and not found["cuda"])


def _cache_name(python: str, stamp: Any, found: dict[str, Any]) -> str:
    text = json.dumps([FLAGS, os.path.abspath(python), stamp, found], sort_keys=True)
    return f"engine-flags-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _kept(path: Path) -> dict[str, Any] | None:
    """The slow answers of an earlier time, None where there are none."""
    answer = store.read_json(path)
    return answer if isinstance(answer, dict) and answer.keys() >= ASKED else None


def _ask_and_keep(
    python: str, path: Path | None, timeout_s: float, named_by: Path | None
) -> dict[str, Any]:
    fresh = _ask(python, FLAGS, timeout_s, named_by)
    if path is not None:
        _keep(path, fresh)
    return fresh


def _ask_beside(
    python: str, path: Path, timeout_s: float, named_by: Path | None, patience_s: float
) -> dict[str, Any]:
    """The slow answers where they come in time; a process of their own goes on for the others."""
    home = str(Path(__file__).parents[2])
    words = [sys.executable, "-I", "-c", BESIDE, home, python, str(path), str(timeout_s)]
    process = subprocess.Popen(
        [*words, *([str(named_by.absolute())] if named_by else [])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt at the terminal is not meant for it
        cwd="/",
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        return {}
    if process.returncode != 0:
        fallback = f"cannot ask {python} what it has; run `caovanctl inventory`, which waits for it"
        raise EngineMissing(said.strip() or fallback)
    answer: dict[str, Any] = json.loads(said)
    return answer


def tell(python: str, path: str, timeout_s: str, *named_by: str) -> int:
    """The process beside: asks, keeps the answer and prints it, or says why there is none."""
    place, status = Path(path), 0
    namer = Path(named_by[0]) if named_by else None
    try:
        with suppress(OSError):  # then it is not kept, and every such process asks
            place.parent.mkdir(parents=True, exist_ok=True)
            store.take_lock(place.with_suffix(".lock"))
        # Who asked before us may have just kept it.
        answer = _kept(place) or _ask_and_keep(python, place, float(timeout_s), namer)
        text = json.dumps(answer)
    except store.LockTaken:
        text = "{}"  # another asks already, which takes a core for long enough
    except EngineMissing as problem:
        text, status = str(problem), 1
    with suppress(BrokenPipeError):  # nobody waits any more
        print(text, flush=True)
    return status


def _keep(path: Path, answer: dict[str, Any]) -> None:
    """Best effort: a cache that cannot be written costs time only."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        store.write_json(path, answer)


def _ask(python: str, script: str, timeout_s: float, named_by: Path | None) -> dict[str, Any]:
    try:
        user = trust.asker(python, named_by)
    except trust.Distrusted as problem:
        raise EngineMissing(str(problem)) from None
    environ = trust.own_environ(os.environ)
    own: dict[str, Any] = {"env": environ} if user is None else user.popen(environ)
    own["env"] = {**inherited(own["env"], python), **QUIET}
    try:
        done = subprocess.run(
            [python, "-c", ENDS_WITH_US + script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            cwd="/",
            check=False,
            **own,
        )
    except FileNotFoundError:
        raise EngineMissing(
            f"cannot find the engine's Python: there is no {python}; "
            "install an engine with `caovanctl engine install`, or set [engine] python"
        ) from None
    except OSError as problem:
        raise EngineMissing(
            f"cannot run the engine's Python {python}: {problem.strerror}; "
            "set [engine] python to an executable Python with vLLM in it"
        ) from None
    except subprocess.TimeoutExpired:
        raise EngineMissing(
            f"cannot ask {python} what it has: no answer in {timeout_s:g} s; "
            "look for a slow disk or a busy machine, then try again"
        ) from None
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            with suppress(ValueError):  # cut off in the middle: it died of something
                answer: dict[str, Any] = json.loads(line[len(MARK) :])
                return answer
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    raise EngineMissing(
        f"cannot use {python} as the engine: {last} (exit status {done.returncode}); "
        "mend that environment, or install an engine with `caovanctl engine install`"
    )
