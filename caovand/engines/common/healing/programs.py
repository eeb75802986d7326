"""The program that brings its own llama.cpp, and what its users update or set for a remedy.

The general advice names llama-server's options and a newer llama.cpp, which those users cannot set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caovand.core.healing.failure import Finding

RUN_BY = "run_by"
"""Name of a capture: the program that ran llama.cpp, by its lines in the log."""
_MAX_LINE = 400


@dataclass(frozen=True)
class _Program:
    """A program's name, and in its own words the update of its llama.cpp, the length of the
    context, the layers on the card, and the choice of another backend."""

    title: str
    update: str
    context: str
    layers: str
    backend: str


_PROGRAMS: Mapping[str, _Program] = {
    "studio": _Program(
        "LM Studio",
        "open its settings, Runtime (Ctrl+Shift+R), update the llama.cpp runtime that is selected "
        "there (CUDA, Vulkan, ROCm, Metal or CPU), and the application itself; the beta channel "
        "has new architectures first; a release before 0.3 has no such page: install the current "
        "application",
        'the slider "Context Length" in the settings with which the model is loaded',
        'the slider "GPU Offload" there',
        "Settings, Runtime: the release before, a newer one, or another backend",
    ),
    "webui": _Program(
        "text-generation-webui",
        "run its update script (update_wizard_*), which installs newer llama.cpp wheels",
        "ctx-size (n_ctx in old releases) in the Model tab, or --ctx-size",
        "gpu-layers (n-gpu-layers) in the Model tab",
        "the requirements file for another backend (CUDA, ROCm, Vulkan, CPU)",
    ),
    "kobold": _Program(
        "KoboldCpp",
        "download its newest release (of a fork, such as that for ROCm, the fork's)",
        "--contextsize, or Context Size in its window",
        "--gpulayers, or GPU Layers in its window",
        "--usecuda, --usevulkan or --usecpu, or Presets in its window",
    ),
    "localai": _Program(
        "LocalAI",
        "upgrade its llama-cpp backend (web page Backends, or `local-ai backends install` with the "
        "variant for this card) and pull the current image",
        "context_size in the model's YAML file",
        "gpu_layers in the model's YAML file",
        "another variant of its llama-cpp backend (CUDA, ROCm, Vulkan, CPU)",
    ),
    "gpt4all": _Program(
        "GPT4All",
        "install its newest release",
        "Context Length in the model's settings",
        "GPU Layers in the model's settings",
        "Device in its settings",
    ),
    "jan": _Program(
        "Jan",
        "update it, and in Settings, Llama.cpp, choose a newer backend",
        "Context Size in the model's settings",
        "GPU Layers in the model's settings",
        "the backend in Settings, Llama.cpp",
    ),
    "python": _Program(
        "llama-cpp-python",
        "`pip install --upgrade --force-reinstall --no-cache-dir llama-cpp-python` (for a card "
        "with CMAKE_ARGS=-DGGML_CUDA=on, or the wheel index for its CUDA); where its newest "
        "release is older than the model, build it from its repository with a newer "
        "vendor/llama.cpp, or run llama-server instead",
        "n_ctx (Llama(n_ctx=...); --n_ctx of its server)",
        "n_gpu_layers",
        "a wheel or build of another backend (CMAKE_ARGS=-DGGML_VULKAN=on, or none for the CPU)",
    ),
}
_NAMES = re.compile(
    r".{0,200}?(?:(?P<studio>\bLM Studio(?:\]| API|[/\\]resources)|\[LMS\w|llmworker\.js"
    r"|lmstudio-llama-cpp|\.lmstudio[/\\](?:extensions|\.internal)|🥲 "
    r"|\"vram_(?:recommended_capacity|unused)\": )"
    r"|(?P<webui>text-generation-webui|\boobabooga|\bmodules[/\\](?:ui_model_menu|models|llamacpp_"
    r"\w{1,20}|llama_cpp_\w{1,20})\.py)"
    r"|(?P<kobold>[Kk]obold[Cc]pp)"
    r"|(?P<localai>\bLocalAI\b|\blocal-?ai[-_/. ]|\bGRPC\(|\[llama-cpp(?:-\w{1,20})?\] "
    r"(?:[Aa]ttempt|Fails))"
    r"|(?P<gpt4all>[/\\]gpt4all[/\\]gpt4all\.py|\bgpt4all\.gpt4all\b|\bGPT4All ERROR)"
    r"|(?P<jan>\\\\?\[?CORTEX|\bcortexcpp\b|[/\\]Jan[/\\]|\bjan-?(?:app|hq)\b|\[app_lib::)"
    r"|(?P<python>\bllama_cpp[/\\.]|\bllama[-_]cpp[-_]python\b|\bLlamaCpp\b))"
)
_OWN_FIRST = ("studio", "webui", "kobold", "localai", "gpt4all", "jan", "python")
"""Programs that use llama-cpp-python come before it."""
_OUTDATED = frozenset({
    "llama.model.architecture", "llama.model.tokenizer", "llama.model.type", "llama.model.tensor",
    "llama.model.shape", "llama.model.key", "ggml.template", "llama.file.magic",
    "llama.model.version", "llama.model.projector.type",
})  # fmt: skip
"""A llama.cpp that is older than the file."""
_NOT_OUTDATED = frozenset({
    "image", "speech", "nameless", "old", "pointer", "zip", "page", "zeros", "magic", "first",
    "swapped", "other", "weightless",
})  # fmt: skip
"""Captures that prove another cause."""
_TOO_LONG = frozenset({
    "llama.cache.long", "llama.cuda.cache", "llama.cache.unplaced", "llama.ram.cache",
})  # fmt: skip
_TOO_LARGE = frozenset({"llama.cuda.oom", "llama.cuda.compute"})
_CRASHED = frozenset({
    "llama.cuda.illegal", "llama.cuda.launch", "llama.cuda.other", "ggml.assertion",
})  # fmt: skip
"""Crashes that another backend, or another release of it, can avoid."""
_HEEDED = _OUTDATED | _TOO_LONG | _TOO_LARGE | _CRASHED


def program_in_log(finding: Finding, lines: Sequence[str]) -> str:
    """The program that ran llama.cpp; "" if none is named or nothing depends on it."""
    if finding.signature not in _HEEDED:
        return ""
    programs = {name for line in lines if (name := _named_in(line))}
    return next((name for name in _OWN_FIRST if name in programs), "")


def _named_in(line: str) -> str:
    match = _NAMES.match(line[:_MAX_LINE])
    return (match.lastgroup or "") if match else ""


def tensors_of(finding: Finding) -> Mapping[str, str]:
    """The number of tensors in a file of which the program reads fewer: `one_more` if it reads all
    but one, else `of_file`; empty for other findings."""
    expected, got = finding.captures.get("expected", ""), finding.captures.get("got", "")
    if finding.signature != "llama.model.shape" or not expected:
        return {}
    return {"one_more" if int(expected) == int(got) + 1 else "of_file": expected}


def first_remedy(finding: Finding) -> tuple[str, ...]:
    """The first remedy for users of the program, in its own words; empty without a program."""
    program = _PROGRAMS.get(str(finding.captures.get(RUN_BY, "")))
    if program is None:
        return ()
    if finding.signature in _TOO_LONG:
        return (f"Shorten the context first: in {program.title} that is {program.context}.",)
    if finding.signature in _TOO_LARGE:
        return (
            f"In {program.title} set fewer layers for the card ({program.layers}) or a shorter "
            f"context ({program.context}).",
        )
    if finding.signature in _CRASHED:
        return (
            f"In {program.title} choose another backend or another release of it "
            f"({program.backend}), or fewer layers for the card ({program.layers}).",
        )
    if _NOT_OUTDATED & finding.captures.keys():
        return ()
    return (
        f"{program.title} brings its own llama.cpp, and that one is too old for the file, or does "
        f"not support it: {program.update}.",
    )
