"""Run by an engine's own Python: builds FlashInfer kernels into a folder, without a GPU.

    ENGINE/bin/python -I kernels_in_env.py JOB

JOB is JSON: `folder`, and `modules` with `label`, `generator` ("package.module:function") and
`arguments`, in which "torch.float16" stands for that type. Environment variables say for which card
and with which compiler. It prints a line of JSON for each module. Each finished one is in `folder`
as FlashInfer looks for it, NAME/NAME.so, and in `built.json`, so that the next call resumes there.

It must not import anything of caovan.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

BUILT = "built.json"


def versions() -> dict[str, str]:
    """The versions that compiled kernels depend on; the probe reports the same three."""
    torch = importlib.import_module("torch")
    return {
        "flashinfer": importlib.metadata.version("flashinfer-python"),
        "torch": importlib.metadata.version("torch"),
        "cuda": torch.version.cuda,
    }


def convert(argument: Any) -> Any:
    """Convert an argument to the form that FlashInfer expects."""
    if isinstance(argument, str) and argument.startswith("torch."):
        return getattr(importlib.import_module("torch"), argument.removeprefix("torch."))
    return argument


class BuiltKernels:
    """built.json: the modules in the folder, and the releases they were built against."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / BUILT
        context = importlib.import_module("flashinfer.compilation_context").CompilationContext()
        targets = sorted(f"sm{major}{minor}" for major, minor in context.TARGET_CUDA_ARCHS)
        self.document: dict[str, Any] = {**versions(), "architectures": targets, "modules": {}}

    def read(self) -> None:
        """Read the record of an earlier call for the same releases, to resume where it stopped."""
        try:
            earlier = json.loads(self._path.read_text(encoding="utf-8"))
            releases = self.document.keys() - {"modules"}
            if all(earlier[key] == self.document[key] for key in releases):
                self.document["modules"] = dict(earlier["modules"])
        except (OSError, ValueError, KeyError, TypeError):
            pass

    def has(self, label: str) -> bool:
        name = self.document["modules"].get(label)
        return name is not None and (self._path.parent / name / f"{name}.so").is_file()

    def add(self, label: str, name: str) -> None:
        self.document["modules"][label] = name
        part = self._path.with_name(f"{BUILT}.new")
        part.write_text(json.dumps(self.document, indent=1) + "\n", encoding="utf-8")
        part.replace(self._path)


def build(module: dict[str, Any], folder: Path) -> tuple[str, int]:
    """Build one module; return its name and its size."""
    place, _, function = module["generator"].partition(":")
    arguments = {key: convert(value) for key, value in module["arguments"].items()}
    spec = getattr(importlib.import_module(place), function)(**arguments)
    importlib.import_module("flashinfer.jit").build_jit_specs([spec], skip_prebuilt=False)
    target = folder / spec.name / f"{spec.name}.so"
    target.parent.mkdir(exist_ok=True)
    part = target.with_suffix(".new")
    shutil.copyfile(spec.jit_library_path, part)
    part.replace(target)
    shutil.rmtree(spec.build_dir)
    return spec.name, target.stat().st_size


def main(job: dict[str, Any], say: Any) -> int:
    folder = Path(job["folder"])
    record = BuiltKernels(folder)
    record.read()
    failed = 0
    for module in job["modules"]:
        label, begun = module["label"], time.monotonic()
        if record.has(label):
            continue
        try:
            name, size = build(module, folder)
            record.add(label, name)
            seconds = round(time.monotonic() - begun, 1)
            say({"module": label, "name": name, "seconds": seconds, "bytes": size})
        except Exception as error:
            failed = 1
            say({"module": label, "error": f"{type(error).__name__}: {error}"})
    return failed


if __name__ == "__main__":
    out = os.dup(1)
    os.dup2(2, 1)  # libraries write to stdout while they are imported
    status = main(
        json.loads(sys.argv[1]),
        lambda line: os.write(out, (json.dumps(line) + "\n").encode()),
    )
    sys.stdout.flush()
    os._exit(status)
