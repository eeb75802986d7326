"""Read the phases of Ollama's start from its log: the server's, then the runner's.

The server listens before it loads a model, which the first completion triggers. The wordings are
from releases 0.3 to 0.34, as people have published them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from caovand.core.engine.log import Phase
from caovand.core.health.observation import LogMark
from caovand.engines.common.logs.figures import NUMBER, Figure, parse_figure
from caovand.engines.common.logs.signature import MAX_LINE
from caovand.engines.ollama.log.line import OllamaLine, take_apart

PHASES = (
    Phase("resolve", "variables", "launch"),
    Phase("http", "HTTP server", "launch"),
    Phase("load", "weights", "load"),
    Phase("kv", "KV cache", "prepare"),
)


@dataclass(frozen=True)
class OllamaMessage:
    """A message that begins with `start`: its phase, a detail for people, figures by group name.

    At the `end` of "http" the server listens, at the `end` of "load" the model is loaded.
    """

    start: str
    phase: str | None
    detail: str = ""
    figures: re.Pattern[str] | None = None
    end: bool = False


def _row(
    start: str, phase: str | None, detail: str, figures: str = "", end: bool = False
) -> OllamaMessage:
    return OllamaMessage(start, phase, detail, re.compile(figures) if figures else None, end)


_SIZE = r"device=(?P<device>\w{1,40}) size=\"(?P<size>[\d.]{1,20} \w{1,5})\""
ROWS = (
    _row("server config", "resolve", "reading the variables"),
    _row("Listening on", "http", "HTTP server up", r"\(version (?P<version>[\w.+-]{1,60})\)", True),
    _row("inference compute", None, "", r"library=(?P<compute>\w{1,40})"),
    _row("starting llama", "load", "starting the model's runner"),
    _row("loading model", "load", "loading the model",
         r"\"model layers\"=(?P<layers>\d{1,6})"),
    _row("offload to ", "load", "placing the layers",
         r"layers\.model=(?P<layers>\d{1,6}) layers\.offload=(?P<gpu_layers>\d{1,6})"),
    _row("offload", "load", "placing the layers",
         r"layers\.model=(?P<layers>\d{1,6}) layers\.offload=(?P<gpu_layers>\d{1,6})"
         r"|offloaded (?P<on_cards>\d{1,6})/\d{1,6} layers to GPU"),
    _row("model weights", None, "", _SIZE),
    _row("kv cache", None, "", _SIZE),
    _row("compute graph", None, "", _SIZE),
    _row("waiting for llama runner to start responding", "load", "waiting for the model's runner"),
    _row("waiting for server to become available", "load", "waiting for the model's runner"),
    _row("llama runner started in", "load", "model loaded", r"in (?P<load_s>[\d.]{1,20}) s", True),
    _row("llama-server started in", "load", "model loaded", r"in (?P<load_s>[\d.]{1,20}) s", True),
)  # fmt: skip
_RAW = (
    ("llama_model_loader: loaded meta data", "load", "model recognised"),
    ("load_tensors: loading model tensors", "load", "reading the weights"),
    ("llama_context: constructing llama_context", "kv", "making the cache"),
)
_SIZES = {"model weights": "weights", "kv cache": "kv", "compute graph": "compute"}
_UNITS = {"B": 1 / (1 << 20), "KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0, "TiB": 1024.0**2}


def read(line: str) -> tuple[LogMark | None, Mapping[str, Figure]]:
    """The start mark in a line, None if there is none, and the line's figures by name."""
    parts = take_apart(line)
    if not parts.level:
        for start, phase, detail in _RAW:
            if line.startswith(start):
                return LogMark(phase, detail), {}
        return None, {}
    row = next((row for row in ROWS if parts.message.startswith(row.start)), None)
    if row is None:
        return None, {}
    figures = _read_figures(row, parts)
    if row.phase is None:
        return None, figures
    return LogMark(row.phase, row.detail, progress=1.0 if row.end else None), figures


def _read_figures(row: OllamaMessage, parts: OllamaLine) -> Mapping[str, Figure]:
    text = f"{parts.message} {parts.rest}"[:MAX_LINE]
    found = row.figures.search(text) if row.figures else None
    if found is None:
        return {}
    named = {k: v for k, v in found.groupdict().items() if v is not None}
    if row.start in _SIZES:
        number, _, unit = named["size"].partition(" ")
        mib = round(float(number) * _UNITS.get(unit, 0), 1) if NUMBER.match(number) else 0
        return {f"{_SIZES[row.start]}_{named['device']}_mib": mib}
    return {k.replace("on_cards", "gpu_layers"): parse_figure(v) for k, v in named.items()}
