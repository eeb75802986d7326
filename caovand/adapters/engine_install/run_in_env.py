"""Run by an engine's own Python: prints the actual state of its environment as one line of JSON.

    ENGINE/bin/python -I run_in_env.py IMPORTS

IMPORTS is JSON: `modules`, of which the first is the engine, `kernels`, Python that loads its
libraries, and `plugins`, a group of entry points (`core.engine.install.Imports` has their meaning).
It must not import anything of caovan, and prints its line even if everything else fails.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def gather(modules: Sequence[str], kernels: str, plugins: str) -> dict[str, Any]:
    """Versions, build, devices and plugins; "errors" has the required imports that failed."""
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "headers": Path(sysconfig.get_paths()["include"], "Python.h").exists(),
        "plugins": [],
        "devices": [],
        "errors": [],
        "warnings": [],
        "version": None,
        "torch": None,
        "cuda": None,
        "platform": None,
    }

    def attempt(name: str) -> Any:
        try:
            return importlib.import_module(name)
        except BaseException as error:
            report["errors"].append(f"import {name}: {type(error).__name__}: {error}")
            return None

    if torch := attempt("torch"):
        report["torch"] = torch.__version__
        report["cuda"] = torch.version.cuda
        try:
            for card in range(torch.cuda.device_count()):
                name = torch.cuda.get_device_name(card)
                capability = list(torch.cuda.get_device_capability(card))
                report["devices"].append({"name": name, "capability": capability})
        except Exception as error:
            report["errors"].append(f"torch.cuda: {error}")
    imported = [attempt(name) for name in modules]
    report["version"] = getattr(imported[0], "__version__", None)
    # without a driver CUDA's kernels cannot load, which is not the environment's fault
    if all(imported) and torch and (report["cuda"] is None or report["devices"]):
        names = {"attempt": attempt, "report": report, "torch": torch}
        try:
            exec(kernels, {**names, "importlib": importlib, "sys": sys})
        except Exception as error:
            report["errors"].append(f"{modules[0]}'s kernels: {type(error).__name__}: {error}")
    for entry in importlib.metadata.entry_points(group=plugins) if plugins else ():
        try:
            entry.load()
            report["plugins"].append(entry.name)
        except BaseException as error:
            # an engine works without someone else's plugin; ours must load
            kind = "errors" if entry.name.startswith("caovan") else "warnings"
            report[kind].append(f"plugin {entry.name}: {type(error).__name__}: {error}")
    report["caovan_plugin"] = version_of("caovan-vllm-sm75-turbo3")
    return report


if __name__ == "__main__":
    out = os.dup(1)
    os.dup2(2, 1)  # libraries write to stdout while they are imported
    answer = gather(**json.loads(sys.argv[1]))
    os.write(out, (json.dumps(answer) + "\n").encode())
    sys.stdout.flush()
    os._exit(0)
