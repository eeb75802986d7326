"""The kernel that Triton could not compile, from the source that it prints before the reason."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

SOURCE = 80
"""Lines of a kernel's source that Triton prints before the reason."""
REASON = "fp8e4nv not supported"
"""A reason that means something else for a kernel of the weights and for one of the cache."""
_DEFINED = re.compile(r"(?:.{0,80}: at \d{1,5}:\d{1,5}: | {0,20})def (?P<name>\w{1,100})\(")


def kernel_before(before: Iterable[str]) -> str:
    """ " (in NAME)" for the kernel whose definition is nearest among the lines before, which come
    last to first; "" without one."""
    definitions = (_DEFINED.match(line) for line in islice(before, SOURCE))
    return next((f" (in {match['name']})" for match in definitions if match), "")
