"""`python -m caovand.gateway`: serve clients until it is ended; the daemon starts it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from caovand.adapters.servers import server_main
from caovand.adapters.servers.server_process import GATEWAY
from caovand.gateway import survivor
from caovand.gateway.facts import BODIES

MEMORY_BYTES = 512 << 20
"""The limit of the address space, in addition to the bodies that may wait."""
DESCRIPTORS = 16_384
OOM_SCORE_ADJ = 300  # for the kernel's OOM killer: the engine and the daemon matter more


def main(argv: Sequence[str] | None = None) -> int:
    """Serve; return the exit status."""
    parser = server_main.parser(GATEWAY, __doc__)
    parser.add_argument("--max-body-mib", type=int, required=True, help="of one request")
    options = parser.parse_args(argv)
    max_body_bytes = options.max_body_mib << 20
    limit = partial(
        server_main.confine,
        memory=MEMORY_BYTES + 2 * BODIES * max_body_bytes,
        descriptors=DESCRIPTORS,
        nice=0,
        oom_score=OOM_SCORE_ADJ,
    )

    def prepare() -> Callable[[socket.socket], Awaitable[object]]:
        marks = survivor.Marks()
        survivor.start(marks)

        async def start(listener: socket.socket) -> object:
            from caovand.gateway import server  # noqa: PLC0415  (once the library is known)

            gateway = await server.start(listener, options.socket, max_body_bytes, marks)
            ends = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)
            gateway.tasks.append(asyncio.ensure_future(_end(gateway.end, ends)))
            return gateway

        return start

    return server_main.run(GATEWAY, options, limit, prepare)


async def _end(end: Callable[[], Awaitable[None]], ends: asyncio.Event) -> None:
    await ends.wait()
    await end()
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
