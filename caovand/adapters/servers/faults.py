"""What an HTTP server answers if a handler raises what it does not expect."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable

from aiohttp import web

from caovand.core.problem import Problem

TRACES = 10  # at most this many tracebacks of a server's bugs are printed


class Faults:
    """Answers for handlers that fail, and counts the server's bugs.

    `remedy` helps a client whose path or method does not exist, `bug` names a bug; `refuse` forms
    the response of a status.
    """

    def __init__(
        self, remedy: str, bug: str, refuse: Callable[[web.Request, Problem, int], web.Response]
    ) -> None:
        self._remedy, self._refuse = remedy, refuse
        self._bug = Problem("answer", bug, "report it with the daemon's log")
        self._count = 0

    async def catch(
        self, request: web.Request, response: Awaitable[web.StreamResponse]
    ) -> web.StreamResponse:
        """The handler's response, or that for its fault; ends the process if memory ran out."""
        try:
            return await response
        except web.HTTPException as error:
            fact = f"{request.method} {request.path[:100]}: {error.reason}"
            return self._refuse(request, Problem("answer", fact, self._remedy), error.status)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except MemoryError:
            sys.exit(1)  # other requests would fail halfway: the daemon restarts the process
        except Exception:
            self._count += 1
            if self._count <= TRACES:
                traceback.print_exc()
            return self._refuse(request, self._bug, 500)
