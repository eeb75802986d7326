"""SGLang's Log record, in a module that imports little: a process of its own reads causes."""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.log import Log
from caovand.engines.sglang.log.cause import NEAR, announces, find_cause
from caovand.engines.sglang.log.phases import read


def _plain(line: str) -> Sequence[str]:
    return (line,)


LOG = Log(
    module=__name__,
    plain=_plain,
    read=read,
    announces=announces,
    near=NEAR,
    listening="http",
    find_cause=find_cause,
)
