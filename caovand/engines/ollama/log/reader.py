"""Ollama's Log record, in a module that imports little: a separate process finds causes."""

from __future__ import annotations

import json
import re

from caovand.core.engine.log import Log
from caovand.engines.common.logs.refusals import without_refusals
from caovand.engines.common.logs.wrapping import one_text
from caovand.engines.ollama.log.cause import MAX_TRACE_LINES, announces_failure, find_cause
from caovand.engines.ollama.log.own_rows import ON_SYSTEMS, OWN_ROWS
from caovand.engines.ollama.log.phases import PHASES, read
from caovand.engines.ollama.log.signatures import BY_ID, SIGNATURES

_FINGERPRINT = re.compile(
    r"^(?:"
    r"(?:.{0,300}?time=\S{1,40} )?level=[A-Z]{1,8} source=|\[GIN\] "
    r"|(?:pulling manifest {1,3})?Error: (?:llama[ -](?:runner|server)|model requires|pull model "
    r"manifest: |max retries exceeded|digest mismatch|registry\.ollama\.ai/|model runner"
    r"|\d{3} (?:Internal|Bad|Not|Forb|Unauth|Serv|Too|Gat|Prec)|"
    r"could not connect to ollama)|pulling (?:manifest|[\da-f]{12}\b)|verifying sha256 digest"
    r"|\d{4}/\d\d/\d\d \d\d:\d\d:\d\d (?:[a-z_]{1,40}\.go:\d|ERROR |INFO |WARN )"
    r"|[\w./-]{0,200}(?:/ollama/|/llama-server-cuda_v\d|//ml/backend/)|ollama\b"
    r"|(?:gathering model components|transferring (?:model data|context)|creating \w{1,20} layer"
    r"|copying file sha256:|parsing GGUF)|.{0,120}[$#>%❯`] ?ollama (?:run|create|pull|serve|list"
    r"|show)\b"
    r"|\{?\"?(?:error\":\")?model requires more system memory"
    r"|.{0,200}(?:\.ollama[/\\]models|github\.com/ollama/)"
    r"|(?:.{0,80}: )?\"?llama[ -](?:runner|server) process has terminated"
    r"|\"?(?:registry\.ollama\.ai/)?[\w./-]{1,100}(?::[\w.-]{1,60})?\"? does not support "
    r"(?:tools|thinking|chat|generate|insert|embed)"
    r"|Error: (?:listen tcp|(?:Post|Head|Get) \"http://)\S{1,60}:11434|do embedding request: "
    r"|Ollama (?:call failed|API error)|Ollama: 50\d, |ollama\._types\."
    r"|\d{1,2}\. ollama (?:run|create|pull|serve)\b|#{1,6} Ollama version\b"
    r"|.{0,40}\b500 Internal Server Error: unable to load model\b"
    r"|\"?model runner has unexpectedly|.{0,300}for url:? '?http\S{1,100}:11434/(?:api|v1)/"
    r")"
)
_NAMED = re.compile(r"\bollama\b", re.IGNORECASE)


def _error(text: str) -> str:
    shown = text if text.startswith("msg=") else f"msg={json.dumps(text, ensure_ascii=False)}"
    return f"level=ERROR source=x.go:0 {shown}"


LOG = Log(
    module=__name__,
    plain=one_text,
    phases=PHASES,
    read=read,
    announces=announces_failure,
    near=MAX_TRACE_LINES,
    listening="http",
    find_cause=without_refusals(find_cause, [BY_ID[name] for name in OWN_ROWS.requests]),
    fingerprint=_FINGERPRINT,
    named=_NAMED,
    own_rows=OWN_ROWS,
    on_systems=ON_SYSTEMS,
    begins=("server config",),
    error=_error,
    kinds={row.id: row.kind for row in SIGNATURES},
    embeds="llamacpp",
)
