"""A folder of models as Ollama keeps them, and its stand-in as a program on PATH."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

STANDIN = Path(__file__).parents[2] / "standin" / "ollama.py"


def add_model(folder: Path, name: str, weights: bytes, **more: Any) -> Path:
    """An entry in `folder` for NAME:TAG of the library, and its blob; the blob."""
    digest = hashlib.sha256(weights).hexdigest()
    blob = folder / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(weights)
    model, _, tag = name.partition(":")
    entry = folder / "manifests/registry.ollama.ai/library" / model / tag
    entry.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "0" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
    ]
    entry.write_text(json.dumps({"schemaVersion": 2, "layers": layers, **more}))
    return blob


def add_program(folder: Path) -> Path:
    """The stand-in as `ollama` in `folder`."""
    program = folder / "ollama"
    folder.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STANDIN} "$@"\n')
    program.chmod(0o755)
    return program
