"""Read the phases of Ollama's start from its log: the server's, then the runner's.

The server listens before it loads a model, which the first completion triggers. The wordings are
from releases 0.3 to 0.34, as people have published them.
"""

from __future__ import annotations

from collections.abc import Mapping

from caovand.core.engine.log import Phase
from caovand.core.health.observation import LogMark
from caovand.engines.common.logs.figures import NUMBER, Figure
from caovand.engines.common.logs.start_messages import find_row, parse_figures
from caovand.engines.common.logs.start_messages import start_message as _row
from caovand.engines.ollama.log.line import take_apart

PHASES = (
    Phase("resolve", "variables", "launch"),
    Phase("http", "HTTP server", "launch"),
    Phase("load", "weights", "load"),
    Phase("kv", "KV cache", "prepare"),
)


_SIZE = r"device=(?P<device>\w{1,40}) size=\"(?P<size>[\d.]{1,20} \w{1,5})\""
_ROWS = (
    _row("server config", "resolve", "reading the variables"),
    _row("Listening on", "http", "HTTP server up", r"\(version (?P<version>[\w.+-]{1,60})\)",
         end=True),
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
    _row("llama runner started in", "load", "model loaded",
         r"in (?P<load_s>[\d.]{1,20}) s", end=True),
    _row("llama-server started in", "load", "model loaded",
         r"in (?P<load_s>[\d.]{1,20}) s", end=True),
)  # fmt: skip
_RAW_ROWS = (
    _row("llama_model_loader: loaded meta data", "load", "model recognised"),
    _row("load_tensors: loading model tensors", "load", "reading the weights"),
    _row("llama_context: constructing llama_context", "kv", "making the cache"),
)
"""Messages of llama.cpp's libraries."""
_SIZES = {"model weights": "weights", "kv cache": "kv", "compute graph": "compute"}
_UNITS = {"B": 1 / (1 << 20), "KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0, "TiB": 1024.0**2}


def read(line: str) -> tuple[LogMark | None, Mapping[str, Figure]]:
    """The start mark in a line, None if there is none, and the line's values by name."""
    parts = take_apart(line)
    if not parts.level:
        raw = find_row(_RAW_ROWS, line)
        return (raw.mark if raw else None), {}
    row = find_row(_ROWS, parts.message)
    if row is None:
        return None, {}
    captures = row.captures(f"{parts.message} {parts.rest}")
    if "device" in captures:
        return row.mark, _read_size(row.pattern.pattern, captures)
    if "on_cards" in captures:
        return row.mark, parse_figures({"gpu_layers": captures["on_cards"]})
    return row.mark, parse_figures(captures)


def _read_size(start: str, captures: Mapping[str, str]) -> Mapping[str, Figure]:
    """The MiB of weights, cache or buffers on one device."""
    number, _, unit = captures["size"].partition(" ")
    mib = round(float(number) * _UNITS.get(unit, 0), 1) if NUMBER.match(number) else 0
    return {f"{_SIZES[start]}_{captures['device']}_mib": mib}
