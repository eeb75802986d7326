"""The questions for vLLM's own Python: versions in 0.2 s, and its flags, which require importing
vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.engine.probe import ProbeScripts
from caovand.core.facts.inventory import EngineInfo
from caovand.engines.common.torch_environment import ENVIRONMENT

VERSIONS = (
    ENVIRONMENT
    + """
import shutil, sysconfig

def nvcc():  # as flashinfer.jit.cpp_ext.get_cuda_path looks for it, once CUDA_HOME is that toolkit
    if toolkit():
        return os.path.join(toolkit(), "bin", "nvcc")
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = None if home else shutil.which("nvcc")
    return found or shutil.which("nvcc", path=os.path.join(home or "/usr/local/cuda", "bin"))

def kernels():  # for these very releases; kernels_in_env.py writes it
    found, place = {}, os.path.join(sys.prefix, "kernels")
    want = {"flashinfer": version("flashinfer-python"), "torch": version("torch"),
            "cuda": torch_cuda()}
    for device in sorted(os.listdir(place)) if os.path.isdir(place) else []:
        try:
            with open(os.path.join(place, device, "built.json")) as source:
                built = json.load(source)
            if all(built[key] == want[key] for key in want):
                found[device] = sorted(built["modules"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
    return found

def header():  # which Triton's launchers include
    place = os.path.join(sysconfig.get_path("include"), "Python.h")
    return place if os.path.isfile(place) else None

vllm, ours = folder("vllm"), folder("caovan_vllm_sm75_turbo3")
print(MARK + json.dumps({
    "vllm": version("vllm"), "torch": version("torch"), "cuda": torch_cuda(),
    "flashinfer": version("flashinfer-python"), "plugin": version("caovan-vllm-sm75-turbo3"),
    "nccl": version("nvidia-nccl-cu" + (torch_cuda() or "").partition(".")[0]),
    "ray": version("ray"), "decodes_sound": any(map(version, ("soundfile", "av", "torchcodec"))),
    "python_version": platform.python_version(),
    "nvcc": nvcc(), "cuda_home": toolkit(), "cxx": os.environ.get("CXX") or shutil.which("c++"),
    "jit_cache": version("flashinfer-jit-cache"), "kernels": kernels(),
    "python_h": header(),
    "compiler": os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc"),
    "stamp": [sys.version, vllm, vllm and os.stat(vllm).st_mtime_ns,
              ours, ours and os.stat(ours).st_mtime_ns, sorted(
        (e.name, e.value) for e in metadata.entry_points(group="vllm.general_plugins"))],
}))
"""
)
FLAGS = """
import json
from vllm.platforms import current_platform
if not current_platform.device_type:
    # No GPU is visible, which is reported elsewhere: the parser's defaults need a device type.
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
        states = getattr(probe, "describe_states", str)()
        attention = getattr(probe, "describe_attention", str)()
        head = getattr(probe, "describe_lm_head", str)()
        return {"gdn_interface": interface, "operators": operators, "states": states,
                "attention": attention, "lm_head": head,
                "library_problem": probe.describe_library().get("error", "")}
    except Exception:
        return {}
print(MARK + json.dumps({**plugin(), "architectures": architectures(),
    "flags": sorted(o for o, a in options),
    "switches": sorted(o for o, a in options if a.nargs == 0),
    "deprecated": sorted(o for o, a in options if a in marked or getattr(a, "deprecated", False)
                         or "is deprecated" in (a.help or "")),
    "choices": {o: sorted(map(str, a.choices)) for o, a in options if a.choices},
    "tool_parsers": registered("vllm.tool_parsers", "ToolParserManager"),
    "reasoning_parsers": registered("vllm.reasoning", "ReasoningParserManager"),
}))
"""
FACTS = frozenset({"flags", "deprecated", "choices", "tool_parsers", "reasoning_parsers"})
QUIET_VARIABLES = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def _missing_package(found: Mapping[str, Any]) -> str:
    if not found["vllm"]:
        return "vLLM"
    return "" if found["torch"] else "PyTorch"


def _parse_answers(python: str, found: Mapping[str, Any], more: Mapping[str, Any]) -> EngineInfo:
    versions = {name: value for name, value in found.items() if name not in ("vllm", "kernels")}
    built = found.get("kernels", {})
    return EngineInfo(
        python=python,
        version=found["vllm"],
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
        states=str(more.get("states", "")),
        attention=str(more.get("attention", "")),
        lm_head=str(more.get("lm_head", "")),
        kernels=tuple(sorted((device, tuple(labels)) for device, labels in built.items())),
        **versions,
    )


def _is_cpu(found: Mapping[str, Any]) -> bool:
    return "+cpu" in found["vllm"] or ("+cpu" in found["torch"] and not found["cuda"])


PROBE = ProbeScripts(
    module=__name__,
    name="vLLM",
    install="sudo caovanctl engine install",
    versions=VERSIONS,
    details=FLAGS,
    asked=FACTS,
    env=QUIET_VARIABLES,
    lacking=_missing_package,
    read=_parse_answers,
)
