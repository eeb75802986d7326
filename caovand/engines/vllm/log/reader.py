"""vLLM's Log record; a separate module, so that the process that reads causes imports little."""

from __future__ import annotations

from caovand.core.log import Log
from caovand.engines.vllm.log.cause import NEAR, announces, find_cause
from caovand.engines.vllm.log.json_lines import plain
from caovand.engines.vllm.log.phases import read

LOG = Log(
    module=__name__,
    plain=plain,
    read=read,
    announces=announces,
    near=NEAR,
    listening="http",
    find_cause=find_cause,
    launches=frozenset({"resolve"}),  # of the engine core, which imports vLLM once more
)
