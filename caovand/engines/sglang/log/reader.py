"""SGLang's Log record, in a module that imports little: a separate process finds causes."""

from __future__ import annotations

import re

from caovand.core.engine.log import Log, OwnRows
from caovand.engines.common.logs.refusals import without_refusals
from caovand.engines.common.logs.rows import kernel_owners, raised
from caovand.engines.common.logs.wrapping import one_text
from caovand.engines.sglang.log.cause import MAX_TRACE_LINES, announces_failure, find_cause
from caovand.engines.sglang.log.phases import PHASES, read
from caovand.engines.sglang.log.signatures import SIGNATURES

_FINGERPRINT = re.compile(
    r"^(?:"
    r"\[(?:(?:\d{4}-)?\d\d-\d\d )?\d\d:\d\d:\d\d(?:\.\d{1,6})?(?: [A-Z]{2,6}\d{1,5}){1,8}\] "
    r"|\[(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?\] (?:server_args="
    r"|Attention backend |Load weight |Init torch distributed|The server is fired up"
    r"|(?:Decode|Prefill) transfer failed|Scheduler hit|Received sigquit|SIGQUIT received"
    r"|Health check failed\. Server couldn't|(?:Prefill|Decode) batch[.,\[ ]"
    r"|Initialization failed|KV Cache is |Memory pool end|Capture )"
    r"|\[gpu=\d{1,3}\] (?:Load weight|Memory pool|Capture |Init )"
    r"|(?:\([^()]{1,80}\) ?)? {0,12}File \"[^\"]{1,300}/(?:sglang|sgl_kernel)/"
    r"|\d\. Architecture-specific pattern: /.{1,300}/sgl_kernel/"
    r"|\[sgl_kernel\] CRITICAL|(?:Decode|Prefill) transfer failed for request"
    r"|(?:[^\"]{1,200} )?python[\d.]{0,4} -m sglang\.launch_server"
    r"|[\w./-]{0,80}launch_server\.py: error: |sglang\.\w|Received sigquit from a child process\. "
    r")"
)
_NAMED = re.compile(r"\bsglang\b(?!/(?:lib|bin)/)|\bsgl[-_]kernel\b", re.IGNORECASE)
_SOURCES = re.compile(
    r"^.{0,300}?(?:/sglang/(?:srt|multimodal_gen)/"
    r"|:\d{1,5}/(?:get_model_info|health_generate|get_server_info)\b)"
)

LOG = Log(
    module=__name__,
    plain=one_text,
    phases=PHASES,
    read=read,
    announces=announces_failure,
    near=MAX_TRACE_LINES,
    listening="http",
    find_cause=without_refusals(find_cause),
    fingerprint=_FINGERPRINT,
    named=_NAMED,
    sources=_SOURCES,
    own_rows=OwnRows(prefix="sglang."),
    linux_only=True,
    embeds="vllm",
    begins=("server_args=",),
    error=lambda text: f"RuntimeError: {text}",
    kinds={row.id: row.kind for row in (*SIGNATURES, *kernel_owners.ROWS, *raised.ROWS)},
)
