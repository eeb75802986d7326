"""Read the phases of vLLM's start from its log: phase, progress, and reported values.

One table, a row per message, is indexed by the message's first word, so that the cost of a line
does not depend on the number of rows. The wordings are from 0.19 to 0.33, on GPUs and on the CPU
build. A start is in the phase of its latest mark: vLLM compiles a drafter after it has profiled,
and newer versions warm kernels up before they capture graphs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from caovand.core.engine.log import TRANSPORT, Phase
from caovand.core.health.observation import LogMark
from caovand.engines.common.logs.figures import Figure, parse_figure
from caovand.engines.common.logs.signature import MAX_LINE
from caovand.engines.vllm.log.line import message_of, stage_of

PHASES = (
    Phase("resolve", "configuration", "launch"),
    Phase("engine", "engine core", "launch"),
    Phase("load", "weights", "load"),
    Phase("drafter", "drafter's weights", "load"),
    Phase("compile", "compilation", "prepare"),
    Phase("profile", "memory profile", "prepare"),
    Phase("kv", "KV cache", "prepare"),
    Phase("capture", "CUDA graphs", "prepare"),
    Phase("warmup", "warm-up", "prepare"),
    Phase("http", "HTTP server", "prove"),
)

BY_STAGE = ("weights_gib", "kv_gib", "graph_gib")
"""Values reported per pipeline stage: its log lines also yield, say, `stage_0_weights_gib`."""


@dataclass(frozen=True)
class VllmMessage:
    """A message that begins with `start`: its phase, a detail for people, values by group name.

    `kind` is "bar" for a progress bar, "done" for the end of the start, "heartbeat" as in LogMark,
    "note" for values alone.
    """

    start: str
    phase: str | None
    detail: str = ""
    figures: re.Pattern[str] | None = None
    kind: str = "mark"


def _row(
    start: str, phase: str | None, detail: str, figures: str = "", kind: str = "mark"
) -> VllmMessage:
    return VllmMessage(start, phase, detail, re.compile(figures) if figures else None, kind)


_CACHE_SIZE = (
    r"KV cache size: (?P<kv_tokens>[\d,]+) tokens"
    r"(?:, Maximum concurrency for (?P<kv_len>[\d,]+) tokens per request: "
    r"(?P<concurrency>[\d.]+)x)?"
)

ROWS = (
    _row("vLLM server version", "resolve", "reading the configuration",
         r"version (?P<version>[^\s,]+), serving model (?P<model>\S+)"),
    _row("non-default args:", "resolve", "reading the configuration"),
    _row("Resolved architecture:", "resolve", "model recognised", r": (?P<architecture>\w+)"),
    _row("Using max model len", "resolve", "model recognised", r"len (?P<max_model_len>\d+)"),
    _row("Chunked prefill is enabled", "resolve", "model recognised",
         r"max_num_batched_tokens=(?P<max_num_batched_tokens>\d+)"),
    _row("Initializing a V1 LLM engine", "engine", "engine process started",
         r"engine \(v(?P<version>[^)]{1,60})\)(?: with config: model='(?P<model>[^']{0,400})')?"),
    _row("world_size=", "engine", "joining the other processes", r"world_size=(?P<world_size>\d+)"),
    _row("Starting to load model", "load", "loading the model"),
    _row("Using ", None, "",
         r"Using (?:AttentionBackendEnum\.)?(?P<attention_backend>[A-Z]\w+) attention backend"
         r"|Using (?P<gdn_backend>\S+) GDN prefill kernel",
         kind="note"),
    # Messages of caovan's plugin. Cards and models that its kernels do not target need no warning.
    _row("caovan: Gated DeltaNet ", None, "",
         r"runs on the (?P<gdn_kernels>SM75) kernels"
         r"|vLLM's own kernels: (?!the GPU is |this is vLLM|vLLM finds |head sizes are "
         r"|\d+ value heads |the convolution is |the activation is )(?P<kernels_refusal>.+)",
         kind="note"),
    _row("caovan: attention ", None, "",
         r"runs on the (?P<attention_kernels>SM75) kernels"
         r"|vLLM's own kernels: (?!the GPU is |this is vLLM|vLLM finds |head sizes are "
         r"|\d+ query heads |the layer |the cache is |switched off)(?P<kernels_refusal>.+)",
         kind="note"),
    _row("caovan: the lm_head ", None, "",
         r"is (?P<lm_head>int8) on the SM75 kernel"
         r"|(?:stays in 16 bits: (?!the GPU is |this is vLLM|vLLM finds |its weights are "
         r"|it has \d+ )|kernel failed, torch multiplies: )(?P<kernels_refusal>.+)",
         kind="note"),
    _row("Filesystem type for checkpoints:", "load", "reading the checkpoint",
         r"Checkpoint size: (?P<checkpoint_gib>[\d.]+) GiB\. "
         r"Available RAM: (?P<available_ram_gib>[\d.]+) GiB"),
    _row("Time spent downloading weights", "load", "weights downloaded",
         r": (?P<download_s>[\d.]+) seconds"),
    _row("Loading safetensors checkpoint shards:", "load", "shard", kind="bar"),
    _row("Loading pt checkpoint shards:", "load", "shard", kind="bar"),
    _row("Multi-thread loading shards:", "load", "shard", kind="bar"),
    _row("Initializing model took", "load", "loading the weights"),
    _row("Loading weights took", "load", "weights read", r"took (?P<weights_read_s>[\d.]+) s"),
    _row("Loading drafter model", "drafter", "loading the draft model"),
    _row("Detected MTP model", "drafter", "sharing weights with the draft model"),
    # Next comes a profiling run, which compiles first if compiling is on.
    _row("Model loading took", "profile", "model loaded",
         r"took (?P<weights_gib>[\d.]+) GiB (?:memory )?and (?P<load_s>[\d.]+) s"),
    _row("Warming up model for the compilation", "compile", "compiling"),
    _row("Starting torch.compile", "compile", "compiling"),
    _row("Using cache directory:", "compile", "compiling"),
    _row("Dynamo bytecode transform time:", "compile", "model traced", r": (?P<dynamo_s>[\d.]+) s"),
    _row("Cache the graph", "compile", "compiling"),
    _row("Compiling a graph", "compile", "graph compiled"),
    _row("Compiling model again", "compile", "compiling again, the cache could not be used"),
    _row("Directly load ", "compile", "compiled code read from the cache"),
    _row("saved AOT compiled function", "compile", "compiled code saved"),
    _row("torch.compile took", "compile", "compiled", r"took (?P<compile_s>[\d.]+) s"),
    _row("torch.compile and", "compile", "compiled", r"took (?P<compile_s>[\d.]+) s"),
    _row("Warming up done", "profile", "compiled"),
    _row("Initial profiling/warmup run took", "profile", "profiled",
         r"took (?P<profile_s>[\d.]+) s"),
    _row("Profiling CUDA graph memory:", "profile", "measuring CUDA graphs"),
    _row("Estimated CUDA graph memory:", "profile", "CUDA graphs measured",
         r": (?P<graph_estimate_gib>[\d.]+) GiB"),
    _row("Available KV cache memory:", "kv", "KV cache sized", r": (?P<kv_gib>-?[\d.]+) GiB"),
    _row("Initial free memory", "kv", "KV cache sized",
         r"reserved (?P<kv_gib>[\d.]+) GiB memory for KV Cache"),
    _row("Explicitly set", "kv", "KV cache sized", r"\((?P<kv_gib>[\d.]+)/[\d.]+\) GiB for KV"),
    *(_row(f"{device} KV cache size:", "kv", "KV cache sized", _CACHE_SIZE)
      for device in ("GPU", "CPU", "XPU", "TPU", "HPU", "NPU")),
    _row("Maximum concurrency for", "kv", "KV cache sized",
         r"for (?P<kv_len>[\d,]+) tokens per request: (?P<concurrency>[\d.]+)x"),
    _row("Auto-fit max_model_len: reduced", "kv", "context shortened to what fits",
         r"from \d+ to (?P<fitted_model_len>\d+)"),
    _row("JIT kernel warmup", "warmup", "kernel", kind="bar"),
    _row("Warming up", "warmup", "warming kernels up"),
    _row("Capturing CUDA graphs", "capture", "graph", kind="bar"),
    _row("Graph capturing finished", "capture", "CUDA graphs captured",
         r"in (?P<capture_s>[\d.]+) secs, took (?P<graph_gib>-?[\d.]+) GiB"),
    _row("CUDA graph pool memory:", "capture", "CUDA graphs captured",
         r": (?P<graph_gib>-?[\d.]+) GiB"),
    _row("Free memory on device", "warmup", "memory settled",
         r"`--kv-cache-memory=(?P<kv_cache_memory_bytes>\d+)` \([\d.]+ GiB\) to fit"),
    _row("init engine (profile,", "warmup", "engine ready",
         r"took (?P<engine_init_s>[\d.]+) s"),
    _row("Kernel JIT monitor activated", "warmup", "engine ready"),
    _row("Supported tasks:", "http", "starting the HTTP server"),
    _row("Multi-modal warmup completed", "http", "starting the HTTP server"),
    _row("Starting vLLM server on", "http", "starting the HTTP server",
         r"on (?P<url>\S+)"),
    _row("Started server process", "http", "starting the HTTP server"),
    _row("Waiting for application startup", "http", "starting the HTTP server"),
    _row("Application startup complete", "http", "HTTP server up", kind="done"),
    _row("Fetching ", "resolve", "file", kind="bar"),
    _row("No available shared memory broadcast block", None, "a process waits for another",
         kind="heartbeat"),
    _row("Engine ", None, "",
         r"Avg prompt throughput: (?P<prompt_tps>[\d.]+) tokens/s, Avg generation throughput: "
         r"(?P<generation_tps>[\d.]+) tokens/s, Running: (?P<running>\d+) reqs, Waiting: "
         r"(?P<waiting>\d+) reqs.{0,200}KV cache usage: (?P<kv_usage_percent>[\d.]+)%",
         kind="note"),
    _row("SpecDecoding metrics:", None, "",
         r"Mean acceptance length: (?P<acceptance_length>[\d.]{1,20}|nan).{0,200} Accepted: "
         r"(?P<accepted>\d{1,15}) tokens, Drafted: (?P<drafted>\d{1,15}) tokens", kind="note"),
)  # fmt: skip

_BY_WORD: dict[str, tuple[VllmMessage, ...]] = {}
for _entry in ROWS:
    _word = _entry.start.split(" ", 1)[0]
    _BY_WORD[_word] = (*_BY_WORD.get(_word, ()), _entry)

_JIT = re.compile(
    r"[\w ]{0,40}(?:JIT compilation|autotuning benchmark) during inference: (\S+?)\.? "
)
_COUNT = re.compile(r"(\d{1,9})/(\d{1,9}) \[")
_PERCENT = re.compile(r"(\d{1,3})%(?:\||\ Completed)")
_BAR = 400  # characters at the end of a line that contain a bar's last state
_LOGO = re.compile(r"[█▄▀ ]+  (?:version (?P<version>\S+)|model   (?P<model>\S+))$")
_NCCL = re.compile(
    r" NCCL INFO Channel \d{1,4}(?:/\d)? : (?P<rank>\d{1,4})\[\w{1,16}\] -> "
    r"(?P<to>\d{1,4})\[\w{1,16}\] \[send\] via NET/(?P<network>[\w/-]{1,40})"
)
"""The network between ranks of two nodes; NCCL names it if NCCL_DEBUG is INFO."""


def phase_of(line: str) -> LogMark | None:
    """The start mark in a line; None if there is none."""
    message = message_of(line)
    return _mark(_find(message), message)


def read_figures(line: str) -> Mapping[str, Figure]:
    """Sizes, times and versions in a line, by name; the unit is in the name.

    If a name repeats, as for the draft model, the first is the main model's.
    """
    message = message_of(line)
    return _with_stage_figures(_read_figures(_find(message), message), line)


def read(line: str) -> tuple[LogMark | None, Mapping[str, Figure]]:
    """The start mark and the values in a line, at half the cost of two calls."""
    message = message_of(line)
    row = _find(message)
    return _mark(row, message), _with_stage_figures(_read_figures(row, message), line)


def _with_stage_figures(figures: dict[str, Figure], line: str) -> dict[str, Figure]:
    """The values in a line, with those that differ between stages also under the stage's name."""
    if any(name in figures for name in BY_STAGE) and (stage := stage_of(line)):
        figures |= {f"stage_{stage}_{name}": figures[name] for name in BY_STAGE if name in figures}
    return figures


def _mark(row: VllmMessage | None, message: str) -> LogMark | None:
    if row is None:
        return _by_later_word(message)
    if row.kind == "note":
        return None
    if row.kind == "bar":
        return _read_bar(row, message)
    return LogMark(
        row.phase,
        row.detail,
        progress=1.0 if row.kind == "done" else None,
        heartbeat=row.kind == "heartbeat",
    )


def _read_figures(row: VllmMessage | None, message: str) -> dict[str, Figure]:
    if row is None:
        if sent := _NCCL.search(message[:MAX_LINE]) if " NCCL INFO " in message else None:
            return {f"{TRANSPORT}{sent['rank']}_{sent['to']}": sent["network"]}
        found = _LOGO.match(message[:MAX_LINE]) if "█" in message[:MAX_LINE] else None
    else:
        found = row.figures.search(message[:MAX_LINE]) if row.figures else None
    return (
        {k: parse_figure(v) for k, v in found.groupdict().items() if v is not None} if found else {}
    )


def _find(message: str) -> VllmMessage | None:
    word = message.split(" ", 1)[0]
    # In `world_size=1 rank=0` the row's first word ends before the number.
    for row in _BY_WORD.get("world_size=" if word.startswith("world_size=") else word, ()):
        if message.startswith(row.start):
            if row.kind == "note" and row.figures and not row.figures.search(message[:MAX_LINE]):
                continue
            return row
    return None


def _read_bar(row: VllmMessage, message: str) -> LogMark:
    """The mark of a progress bar, which prints itself repeatedly, sometimes without a newline: the
    last state counts."""
    end = message[-_BAR:]
    counts = _COUNT.findall(end)
    if counts and int(counts[-1][1]):
        done, total = (int(n) for n in counts[-1])
        return LogMark(row.phase, f"{row.detail} {done} of {total}", min(1.0, done / total))
    percents = _PERCENT.findall(end)
    if percents:
        return LogMark(
            row.phase, f"{row.detail}s {percents[-1]} %", min(1.0, int(percents[-1]) / 100)
        )
    return LogMark(row.phase, f"{row.detail}s")


def _by_later_word(message: str) -> LogMark | None:
    """The mark of a line known by a later word: kernels compiled while serving, and bars with other
    names."""
    if "during inference" in message:
        late = _JIT.match(message)
        return LogMark(None, f'compiling "{late.group(1)}"', jit=True) if late else None
    end = message[-_BAR:]
    percents = _PERCENT.findall(end) if "%|" in end else ()
    if not percents:
        return None
    name = message.split(":", 1)[0].strip()[:60]
    return LogMark(None, f'"{name}" {percents[-1]} %', min(1.0, int(percents[-1]) / 100))
