"""How a command ends: every way out is an exit status and at most one sentence."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

from caovand.cli.client import Exit, Problem
from caovand.core.wire import WireError


def ended(program: str, run: Callable[[], int]) -> int:
    """Run a command and tell what it could not do; its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name need not be text
    try:
        status = int(run())
        sys.stdout.flush()  # here, where a reader that went away is no traceback
    except Problem as problem:
        print(f"{program}: {problem}", file=sys.stderr)
        return int(problem.status)
    except WireError as problem:
        print(f"{program}: {problem.message}; {problem.hint}", file=sys.stderr)
        return Exit.FAILED
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader went away; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    return status
