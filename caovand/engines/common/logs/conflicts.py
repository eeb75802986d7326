"""What pip reports after an installation: the releases that an installed package does not take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from caovand.engines.common.logs.rows import packages
from caovand.engines.common.logs.signature import MAX_LINE, Signature

CONFLICT = "python.conflict"
"""The row of one such line."""
_ROW = next(row for row in packages.ROWS if row.id == CONFLICT)
SEVERAL = replace(_ROW, id="python.conflicts")
"""The row of several such lines."""
MAX_PINS = 8


def whole_conflict(
    row: Signature, captures: Mapping[str, str], lines: Sequence[str]
) -> tuple[Signature, Mapping[str, str]]:
    """The row and its captures, with the `pins` and the users of every such line."""
    found = [one for line in lines if (one := _ROW.pattern.search(line[:MAX_LINE]))]
    wanted = [*dict.fromkeys(one["wants"] for one in found)]
    if len(wanted) < 2:
        return row, captures
    users = ", ".join([*dict.fromkeys(one["user"] for one in found)][:MAX_PINS])
    pins = " ".join(f"'{one}'" for one in wanted[:MAX_PINS])
    return SEVERAL, {**captures, "user": users, "pins": pins}
