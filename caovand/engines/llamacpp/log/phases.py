"""Read the phases of llama-server's start, and the sizes it reports, from its log.

At verbosity 4 it names each buffer as it allocates it. The wordings are from build b11434.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caovand.core.engine.log import Phase
from caovand.core.health.observation import LogMark
from caovand.engines.common.logs.figures import Figure
from caovand.engines.common.logs.signature import MAX_LINE
from caovand.engines.common.logs.start_messages import find_row, parse_figures
from caovand.engines.common.logs.start_messages import start_message as _row
from caovand.engines.llamacpp.log.line import take_apart

PHASES = (
    Phase("resolve", "options", "launch"),
    Phase("load", "weights", "load"),
    Phase("kv", "KV cache", "prepare"),
    Phase("warmup", "warm-up", "prepare"),
    Phase("drafter", "drafter", "prepare"),
    Phase("http", "HTTP server", "prove"),
)


_MIB = r"= +(?P<{}>[\d.]+) MiB"
_ROWS = (
    _row("llama_server: initializing", "resolve", "reading the options"),
    _row("load_model: loading model", "load", "loading the model"),
    _row("llama_model_loader: loaded meta data", "load", "model recognised",
         r"version GGUF (?P<gguf_version>\w+)"),
    _row("load_tensors: loading model tensors", "load", "reading the weights",
         r"load_mode = (?P<load_mode>[\w+]+)"),
    _row("load_tensors: offloaded", "load", "weights on the cards",
         r"offloaded (?P<gpu_layers>\d+)/(?P<layers>\d+) layers"),
    _row("llama_context: constructing llama_context", "kv", "making the cache"),
    _row("llama_context: n_ctx_seq  ", None, "", r"= (?P<context>\d+)"),
    _row("llama_kv_cache: size =", "kv", "KV cache sized",
         _MIB.format("kv_mib") + r" \( *(?P<cells>\d+) cells, +\d+ layers, +(?P<slots>\d+)/"),
    _row("llama_memory_recurrent: size =", "kv", "states sized", _MIB.format("states_mib")),
    _row("sched_reserve: reserving", "kv", "sizing compute buffers"),
    _row("common_init_: warming up the model", "warmup", "warming up"),
    _row("common_speculative_init_result: creating MTP draft context", "drafter",
         "making the drafting context"),
    _row("load_model: initializing, n_slots", "http", "making the slots",
         r"n_slots = (?P<slots>\d+), n_ctx_slot = (?P<context>\d+)"),
    _row("llama_server: model loaded", "http", "model loaded"),
    _row("llama_server: listening on", "http", "HTTP server up",
         r"listening on (?P<url>\S+)", end=True),
)  # fmt: skip
_BUFFER = re.compile(
    r" *(?P<device>\w+) +(?P<content>model|KV|RS|compute|output) buffer size += +"
    r"(?P<mib>[\d.]+) MiB"
)
_CONTENTS = {
    "model": "weights", "KV": "kv", "RS": "states", "compute": "compute", "output": "logits",
}  # fmt: skip


def read(line: str) -> tuple[LogMark | None, Mapping[str, Figure]]:
    """The start mark in a line, None if there is none, and the line's values by name."""
    parts = take_apart(line)
    message = f"{parts.source}: {parts.message}"
    row = find_row(_ROWS, message)
    if row is None:
        return None, _read_buffer(parts.message)
    return row.mark, parse_figures(row.captures(message))


def phase_of(line: str) -> LogMark | None:
    """The start mark in a line; None if there is none."""
    return read(line)[0]


def _read_buffer(message: str) -> Mapping[str, Figure]:
    """Name and size of one buffer, such as `compute_CUDA0_mib`."""
    buffer = _BUFFER.match(message[:MAX_LINE]) if "buffer size" in message else None
    if buffer is None:
        return {}
    return {f"{_CONTENTS[buffer['content']]}_{buffer['device']}_mib": float(buffer["mib"])}
