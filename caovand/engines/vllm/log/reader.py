"""vLLM's Log record; a separate module, so that the process that finds causes imports little."""

from __future__ import annotations

import re

from caovand.core.engine.log import Log
from caovand.engines.common.logs.refusals import without_refusals
from caovand.engines.common.logs.rows import kernel_owners, raised
from caovand.engines.vllm.log.cause import MAX_LINES_BEFORE, announces_failure, find_cause
from caovand.engines.vllm.log.json_lines import unpack
from caovand.engines.vllm.log.line import as_error
from caovand.engines.vllm.log.phases import PHASES, read
from caovand.engines.vllm.log.signatures import SIGNATURES

_FINGERPRINT = re.compile(
    r"^(?:"
    r"\(?(?:APIServer|ApiServer|EngineCore|StageEngineCore|Worker|VllmWorker|RayWorker)[^()]{0,80}pid=\d"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) {1,4}(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d[.,\d]{0,7} "
    r"\[?[\w./-]{1,100}:\d{1,6}\]"
    r"|(?:\(\w{1,40}\) )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) {1,3}\[[\w./-]{1,80}\.py"
    r"(?::\d{1,6})?\]"
    r"|(?:\([^()]{1,80}\) ?)? {0,12}File \"[^\"]{1,300}/vllm/(?!(?:lib(?:64)?|bin)/)"
    r"|(?:usage: )?[\w./-]{0,60}\bvllm\b[\w ./-]{0,60}: error: |vllm\.\w"
    r"|Exception in worker VllmWorker|The model's max seq len \(\d"
    r"|>?(?:pydantic_core\S{1,60}: )?\d{1,3} validation errors? for (?:ModelConfig|VllmConfig"
    r"|EngineArgs|SpeculativeConfig|ParallelConfig|CacheConfig|SchedulerConfig|LoadConfig)\b"
    r"|ValueError: There is no module or parameter named '"
    r"|(?:[^\"]{1,200}? )?-m vllm\.entrypoints\."
    r"|(?:[^ ]{1,80}[$#] {1,3}|>? ?(?:[A-Z_\d]{1,60}=\S{1,80} ){1,6})?vllm serve \S"
    r"|\{\"(?:levelname|asctime|timestamp)\": "
    r")"
)
_NAMED = re.compile(
    r"\bvllm(?:_\w{1,40})?\b(?!/(?:lib|bin)/)"
    r"|\b(?-i:Vllm[A-Z]|RayWorker(?:Vllm|Wrapper)\b|EngineCore failed to start)",
    re.IGNORECASE,
)
_SOURCES = re.compile(
    r"^.{0,300}?/vllm/(?:v1|engine|entrypoints|model_executor|worker|executor|distributed)/"
)

LOG = Log(
    module=__name__,
    plain=unpack,
    phases=PHASES,
    read=read,
    announces=announces_failure,
    near=MAX_LINES_BEFORE,
    listening="http",
    find_cause=without_refusals(find_cause),
    fingerprint=_FINGERPRINT,
    named=_NAMED,
    sources=_SOURCES,
    linux_only=True,
    begins=("non-default args: ", "█     █     █▄   ▄█"),
    error=as_error,
    kinds={row.id: row.kind for row in (*SIGNATURES, *kernel_owners.ROWS, *raised.ROWS)},
    launches=frozenset({"resolve"}),  # of the engine core, which imports vLLM again
)
