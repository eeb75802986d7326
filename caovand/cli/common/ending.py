"""End a command: every way out is an exit status and at most one sentence."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable

from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.printing import escaping_output, raw_stream
from caovand.core.reporting.wire import WireError

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors from writing to a full or broken disk."""
READER_GONE = (
    "cannot report the outcome: the program that reads the output has exited, and the command "
    "may be half done; run it again without a pipe"
)


def run_to_exit_status(
    program: str, run: Callable[[], int], effects: Callable[[], bool] = lambda: False
) -> int:
    """Run a command, report its error, and return its exit status.

    If the reader goes away (`| head`), the command counts as successful, unless it has `effects`:
    how far it got is then unknown.
    """
    with escaping_output():
        return _run(program, run, effects)


def _run(program: str, run: Callable[[], int], effects: Callable[[], bool]) -> int:
    try:
        try:
            status = int(run())
        finally:
            sys.stdout.flush()  # flush here, where a reader that went away causes no traceback
    except CommandError as problem:
        print(f"{program}: {problem}", file=sys.stderr)
        return int(problem.status)
    except WireError as problem:
        print(f"{program}: {problem.message}; {problem.hint}", file=sys.stderr)
        return Exit.FAILED
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _discard()
        if not effects():
            return Exit.DONE
        with contextlib.suppress(BrokenPipeError):
            print(f"{program}: {READER_GONE}", file=sys.stderr)
        return Exit.FAILED
    except OSError as problem:
        if problem.errno not in DISK_ERRORS or problem.filename is not None:
            raise
        _discard()
        text = f"cannot write the output: {problem.strerror}; free space, or write it elsewhere"
        print(f"{program}: {text}", file=sys.stderr)
        return Exit.FAILED
    return status


def _discard() -> None:
    """Keep Python from complaining at exit about unread output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), raw_stream(sys.stdout).fileno())
