"""Library texts about something the host denies: shared memory, sockets, a newer driver.

They strike every engine alike: its table begins with these rows.
"""

from __future__ import annotations

from caovand.engines.common.signature import signature

ROWS = (
    signature("shm.full", "cause", "shm-full",
         r"[Ee]rror while creating shared memory segment(?: (?P<path>/dev/shm/\S{1,100}))?"
         r"|No space left on device.{0,100}/dev/shm/|/dev/shm/.{0,100}No space left on device"
         r"|might be caused by insufficient shared memory|out of shared memory\b.{0,60}\bshm"
         r"|unable to (?:open|allocate) shared memory"),
    signature("sandbox.families", "cause", "access-denied",
         r"Address family not supported by protocol"),
    signature("driver.old", "cause", "backend-unsupported",
         r"provided PTX was compiled with an unsupported toolchain|cudaErrorUnsupportedPtxVersion"),
    signature("cache.fp8", "cause", "backend-unsupported",
         r"fp8e4nv not supported in this architecture"),
)  # fmt: skip
