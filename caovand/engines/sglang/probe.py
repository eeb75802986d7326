"""The questions for SGLang's own Python: its versions, its kernels' cards, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.engine.probe import ProbeScripts
from caovand.core.facts.inventory import EngineInfo
from caovand.engines.common.torch_environment import ENVIRONMENT

MIN_RELEASE = "0.5.17"
"""The first release with every option that a plan uses."""
HOW = "sudo caovanctl engine install --kind sglang"
# A shared library names the cards that it has machine code for; the one with common operators is
# small, and every model needs it.
VERSIONS = (
    ENVIRONMENT
    + """
import glob

sglang, kernel = folder("sglang"), folder("sgl_kernel")
files = sorted(glob.glob(kernel + "/**/common_ops*.so", recursive=True)) if kernel else []
print(MARK + json.dumps({
    "sglang": version("sglang"), "torch": version("torch"), "cuda": torch_cuda(),
    "cuda_home": toolkit(), "flashinfer": version("flashinfer-python"),
    "python_version": platform.python_version(),
    "stamp": [sys.version, version("sglang"), version("torch"), sglang
              and os.stat(sglang).st_mtime_ns, [[f, os.stat(f).st_mtime_ns] for f in files]],
}))
"""
)
DETAILS = """
import argparse, glob, importlib.util, json, os, re

def cards():
    spec = importlib.util.find_spec("sgl_kernel")
    found = set()
    place = os.path.dirname(spec.origin) if spec and spec.origin else ""
    for file in glob.glob(place + "/**/common_ops*.so", recursive=True) if place else []:
        with open(file, "rb") as library:
            found.update(m.decode() for m in re.findall(rb"sm_[0-9]{2,3}[af]?", library.read()))
    return sorted(found)

from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
options = [(word, action) for action in parser._actions for word in action.option_strings]
print(MARK + json.dumps({
    "cards": cards(),
    "flags": sorted(word for word, _ in options),
    "switches": sorted(word for word, action in options if action.nargs == 0),
    "deprecated": sorted(word for word, action in options
                         if type(action).__name__.startswith("Deprecated")),
    "choices": {word: sorted(map(str, action.choices)) for word, action in options
                if action.choices},
}))
"""
_TOOLS, _REASONING = "--tool-call-parser", "--reasoning-parser"


def _missing_package(first: Mapping[str, Any]) -> str:
    if not first["sglang"]:
        return "SGLang"
    return "" if first["torch"] else "PyTorch"


def _parse_answers(python: str, first: Mapping[str, Any], rest: Mapping[str, Any]) -> EngineInfo:
    choices = {word: tuple(values) for word, values in rest.get("choices", {}).items()}
    return EngineInfo(
        python=python,
        version=str(first["sglang"]),
        torch=str(first["torch"]),
        build="cuda" if first["cuda"] else "cpu",
        flashinfer=first["flashinfer"],
        flags=frozenset(rest.get("flags", ())),
        switches=frozenset(rest.get("switches", ())),
        deprecated=frozenset(rest.get("deprecated", ())),
        choices=tuple(sorted(choices.items())),
        tool_parsers=frozenset(choices.get(_TOOLS, ())),
        reasoning_parsers=frozenset(choices.get(_REASONING, ())),
        python_version=str(first["python_version"]),
        cuda=first["cuda"],
        cuda_home=first.get("cuda_home"),
        kernels=tuple((card, ()) for card in rest.get("cards", ())),
    )


PROBE = ProbeScripts(
    module=__name__,
    name="SGLang",
    install=HOW,
    versions=VERSIONS,
    details=DETAILS,
    asked=frozenset({"flags", "cards"}),
    env={},
    lacking=_missing_package,
    read=_parse_answers,
)
