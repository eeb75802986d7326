"""Threads for calls that may never return: a hung driver or disk must not block the daemon."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Threads(ThreadPoolExecutor):
    """An event loop's executor with one daemon thread per call, which nothing joins.

    The default executor has a few threads, which hung calls use up, and joins them when the loop
    ends and again when Python does.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn` in a new thread."""
        future: Future[Any] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as problem:
                future.set_exception(problem)
            else:
                future.set_result(result)

        threading.Thread(target=work, name="caovand-call", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Abandon the threads."""
