"""An engine of small processes: `process_tree.py KIND ...` makes one of each kind and waits.

Each prints its pid on a line of its own. `deaf-first` makes the first process ignore TERM.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

PR_SET_NAME = 15


def linger(*, silent: bool = False) -> None:
    os.write(1, f"{os.getpid()}\n".encode())  # whole, beside those of others
    if silent:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
    while True:
        signal.pause()


def rename(name: bytes) -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0)


def fork() -> bool:
    """Whether this is the new process."""
    return os.fork() == 0


def make(kind: str) -> None:
    """What the descendant of this kind does first."""
    if kind == "renamed":
        rename(b"VLLM::Engine) R 1")
    elif kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif kind == "setsid":
        os.setsid()
    elif kind == "double-fork" and not fork():
        os._exit(0)
    elif kind in ("daemonized", "silent"):
        os.setsid()
        if not fork():
            os._exit(0)
    elif kind.startswith("hopper"):
        hop(float(kind.removeprefix("hopper")))
    linger(silent=kind == "silent")


def hop(rest_s: float) -> None:
    """Be another process in another session after each rest, but not for ever."""
    rename(b"hop%d" % os.getsid(0))
    os.write(1, f"{os.getpid()}\n".encode())
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if not fork():
            os._exit(0)
        os.setsid()
        time.sleep(rest_s)


def main() -> None:
    if "deaf-first" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for kind in sys.argv[1:]:
        if kind != "deaf-first" and fork():
            make(kind)
    linger()


if __name__ == "__main__":
    main()
