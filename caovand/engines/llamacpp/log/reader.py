"""llama.cpp's Log record, in a module that imports little: a process of its own reads causes."""

from __future__ import annotations

import re

from caovand.core.engine.log import Log
from caovand.engines.common.wrapping import one_text
from caovand.engines.llamacpp.log.cause import NEAR, announces_failure, find_cause
from caovand.engines.llamacpp.log.phases import PHASES, read
from caovand.engines.llamacpp.log.signatures import SIGNATURES

_FINGERPRINT = re.compile(
    r"^(?:"
    r"\d{1,6}\.\d\d\.\d{3}\.\d{3} [DIWE] |[\w./-]{0,200}/ggml/src/|(?:lib)?(?:ggml"
    r"|llama)[\w.-]{0,40}"
    r"(?:: |\.so|\()|update_slots : |slot \d{1,4} (?:: |is )"
    r"|(?:srv|slot|que|cmn) {1,6}\w{1,40}: "
    r"|(?:llm_|load_|print_info|clip_|gguf_|common_|sched_)\w{0,40}: "
    r"|(?:INFO|WARN|ERR|VERB) {1,2}\[ {0,40}\w{1,60}\] .{1,120}\| tid=\""
    r"|(?:main|build): (?:build|exiting|server|loading|\d{3,5} )"
    r")"
)

LOG = Log(
    module=__name__,
    plain=one_text,
    phases=PHASES,
    read=read,
    announces=announces_failure,
    near=NEAR,
    listening="http",
    find_cause=find_cause,
    fingerprint=_FINGERPRINT,
    begins=("llama_server: initializing", "main: starting", "main: build"),
    kinds={row.id: row.kind for row in SIGNATURES},
)
