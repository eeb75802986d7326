"""Model names, and where Ollama stores models: an entry (manifest) for each, and blobs.

`qwen3:8b` is `registry.ollama.ai/library/qwen3:8b`, and its entry
`manifests/registry.ollama.ai/library/qwen3/8b`. The entry names the GGUF file by its digest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from caovand.core.config.schema import Config
from caovand.core.engine.named_models import NamedModels, NamedPull, PullStep
from caovand.core.problem import Problem

MODELS = "OLLAMA_MODELS"
SERVICE_MODELS = "/usr/share/ollama/.ollama/models"
"""Folders of the service that Ollama's own installer creates."""
HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"
WEIGHTS = "application/vnd.ollama.image.model"
MAX_LAYERS = 1000
FOLDERS = ("/", ".", "~")
"""Prefixes of a checkpoint's path, as other engines accept it."""
_PART = re.compile(r"\w[\w.-]{0,200}", re.ASCII)
_HOST = re.compile(r"\w[\w.-]{0,200}(?::\d{1,5})?", re.ASCII)
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def folders(config: Config, environ: Mapping[str, str]) -> Sequence[str]:
    """The folders where models may be: the configured one, else the user's own and the
    service's."""
    chosen = dict(config.engine.env).get(MODELS) or environ.get(MODELS)
    if chosen:
        return (chosen,)
    home = environ.get("HOME", "")
    return (*([f"{home}/.ollama/models"] if home else []), SERVICE_MODELS)


def manifest_path(name: str) -> str:
    """The path of a name's entry in such a folder; "" for an invalid name."""
    path, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", TAG)
    parts = path.split("/")
    if len(parts) > 3:
        return ""
    host, namespace, model = [*(HOST, NAMESPACE)[: 3 - len(parts)], *parts]
    if not _HOST.fullmatch(host) or not all(map(_PART.fullmatch, (namespace, model, tag))):
        return ""
    return f"manifests/{host}/{namespace}/{model}/{tag}"


def weights_path(table: Mapping[str, Any]) -> str:
    """The path of the GGUF file that an entry names; "" if it names none."""
    layers = table.get("layers")
    for layer in layers[:MAX_LAYERS] if isinstance(layers, list) else ():
        if isinstance(layer, dict) and layer.get("mediaType") == WEIGHTS:
            digest = _DIGEST.fullmatch(str(layer.get("digest")))
            return f"blobs/sha256-{digest[1]}" if digest else ""
    return ""


def missing_model(name: str) -> Problem:
    """The problem with a name that Ollama does not have."""
    cannot = f"serve model {name} with Ollama"
    if not manifest_path(name):
        remedy = "set [model] path to a name such as qwen3:8b; `ollama create NAME` names a file"
        if name.startswith(FOLDERS):
            remedy = (
                "set [model] path to a name such as qwen3:8b, or hf.co/OWNER/NAME:Q4_K_M for a "
                "GGUF file on the hub; `ollama create NAME` names a local GGUF file"
            )
        return Problem(cannot, "it is not the name of an Ollama model", remedy)
    remedy = (
        f"download it: sudo caovanctl model pull --from ollama {name}; if it is stored "
        f"elsewhere, set {MODELS} in [engine] env"
    )
    return Problem(cannot, "Ollama has no such model", remedy)


def folder_of(file: str) -> str:
    """The folder of all models, from the path of a GGUF file in it."""
    return file.rpartition("/blobs/")[0]


def read_step(line: Mapping[str, Any]) -> PullStep:
    """Parse a line of the answer to /api/pull."""
    sizes = [line.get(key) for key in ("completed", "total")]
    done, total = (size if isinstance(size, int) and size >= 0 else 0 for size in sizes)
    text, error = str(line.get("status", "")), line.get("error")
    return PullStep(
        text=text,
        done=min(done, total),
        total=total,
        error=str(error) if error else "",
        complete=text == "success",
    )


NAMED_MODELS = NamedModels(
    folders=folders,
    entry=manifest_path,
    weights=weights_path,
    missing=missing_model,
    pull=NamedPull(
        words=("serve",),
        variables=lambda address, folder: {"OLLAMA_HOST": address, MODELS: folder},
        ready="/api/version",
        path="/api/pull",
        body=lambda name: {"model": name, "stream": True},
        read=read_step,
        by_hand="ollama serve, and in another terminal ollama pull",
    ),
)  # fmt: skip
