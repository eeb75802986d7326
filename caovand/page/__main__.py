"""`python -m caovand.page`: serve the page until ended; the daemon starts and supervises it.

It yields to everything else under memory pressure.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from caovand.adapters.files import secret_file
from caovand.adapters.servers import server_main
from caovand.adapters.servers.server_process import PAGE

MEMORY_BYTES = 256 << 20
DESCRIPTORS = 512
NICENESS = 10
FIRST_VICTIM = 500  # for the kernel's OOM killer: engine and daemon matter more


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the page; return the exit status."""
    parser = server_main.parser(PAGE, __doc__)
    parser.add_argument("--token-file", default="", metavar="FILE")
    options = parser.parse_args(argv)
    limit = partial(
        server_main.confine,
        memory=MEMORY_BYTES,
        descriptors=DESCRIPTORS,
        nice=NICENESS,
        oom_score=FIRST_VICTIM,
    )

    def prepare() -> Callable[[socket.socket], Awaitable[object]]:
        file = options.token_file
        token = secret_file.read(file, secret_file.TOKEN_FILE) if file else ""

        async def start(listener: socket.socket) -> object:
            from caovand.page import server  # noqa: PLC0415  (once the library is known)

            return await server.start(listener, options.listen, options.socket, token)

        return start

    return server_main.run(PAGE, options, limit, prepare)


if __name__ == "__main__":
    sys.exit(main())
