"""Read the phases of SGLang's start from its log.

The wordings are from release 0.5.23, by its sources, and from releases since 0.4.4, as people have
published them. The HTTP server answers 503 until SGLang's own first request has succeeded.
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
from caovand.engines.sglang.log.line import take_apart

PHASES = (
    Phase("resolve", "options", "launch"),
    Phase("engine", "processes", "launch"),
    Phase("load", "weights", "load"),
    Phase("kv", "KV cache", "prepare"),
    Phase("capture", "CUDA graphs", "prepare"),
    Phase("http", "HTTP server", "prove"),
)


_GRAPHS = r"(?:cuda|CUDA) graph"
_ROWS = (
    _row(r"server_args=", "resolve", "options read"),
    _row(r"Attention backend not specified\. Use (?P<attention_backend>\w{1,40}) backend",
         "resolve", "attention chosen"),
    _row(r"Init torch distributed begin", "engine", "joining the other processes"),
    _row(r"Init torch distributed ends", "engine", "processes joined"),
    _row(r"Load weight begin", "load", "reading the weights"),
    _row(r"Load weight end\.(?: elapsed=(?P<load_s>[\d.]{1,12}) s,)?.{0,300}?"
         r"mem usage=(?P<weights_gib>[\d.]{1,12}) GB", "load", "weights loaded"),
    _row(r"(?:Post-capture KV sizing: )?KV [Cc]ache (?:is )?allocated\.(?: dtype: [\w.]{1,40},)?"
         r" #tokens: (?P<kv_tokens>\d{1,12})(?:, K size: (?P<k_gib>[\d.]{1,12}) GB, V size: "
         r"(?P<v_gib>[\d.]{1,12}) GB|, KV size: (?P<kv_gib>[\d.]{1,12}) GB)?", "kv", "cache made"),
    _row(r"Mamba Cache is allocated", "kv", "cache made"),
    _row(r"Memory pool end", "capture", "making the steps' buffers"),
    _row(rf"Capture [\w ]{{0,60}}?{_GRAPHS} begin", "capture", "capturing CUDA graphs"),
    _row(rf"Capture [\w ]{{0,60}}?{_GRAPHS} end\.(?: Time| bs=.{{0,600}}?,)? ?elapsed[:=] ?"
         r"(?P<capture_s>[\d.]{1,12}) s", "capture", "CUDA graphs captured"),
    _row(rf"Capture [\w ]{{0,60}}?{_GRAPHS} (?:bs|num tokens|end)", "capture",
         "capturing CUDA graphs"),
    _row(r"max_total_num_tokens=(?P<kv_tokens>\d{1,12}), .{0,300}?"
         r"context_len=(?P<max_model_len>\d{1,12})", "http", "scheduler ready"),
    _row(r"The server is fired up and ready to roll", "http", "server ready", end=True),
)  # fmt: skip
_BARS = (
    (re.compile(r"(?:Loading \w{1,20} checkpoint shards|Multi-thread loading [\w ]{1,30}):"
                r" {1,4}(\d{1,3})%"), "load", "reading the weights"),
    (re.compile(r"Capturing (?:batches|num tokens) \([^)]{0,80}\): {1,4}(\d{1,3})%"), "capture",
     "capturing CUDA graphs"),
)  # fmt: skip


def read(line: str) -> tuple[LogMark | None, Mapping[str, Figure]]:
    """The start mark in a line, None if there is none, and the line's values by name."""
    parts = take_apart(line)
    if parts.at_s is None:
        return _read_bar(parts.message[:MAX_LINE]), {}
    row = find_row(_ROWS, parts.message)
    return (row.mark, _read_figures(row.captures(parts.message))) if row else (None, {})


def _read_bar(message: str) -> LogMark | None:
    for pattern, phase, detail in _BARS:
        if bar := pattern.match(message):
            return LogMark(phase, f"{detail}: {bar[1]} %")
    return None


def _read_figures(captures: Mapping[str, str]) -> Mapping[str, Figure]:
    figures = parse_figures(captures)
    halves = [figures.pop(name) for name in ("k_gib", "v_gib") if name in figures]
    if halves:
        figures["kv_gib"] = round(sum(float(half) for half in halves), 2)
    return figures
