"""Runs programs in forks of one Python that has imported what they need: vLLM takes it seconds.

    forks.py "import ..." < PROGRAMS > RESULTS

Both are JSON, by name: [source, arguments, environment], and [exit status, stdout, stderr]. Nothing
that a program changes is seen by the next one.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from typing import NoReturn


def run(source: str, arguments: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Run one program; its exit status and what it printed."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            become(source, arguments, environment)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return os.waitstatus_to_exitcode(status), out.read(), err.read()


def become(source: str, arguments: list[str], environment: dict[str, str]) -> NoReturn:
    """Run a program in this process, and end with it."""
    status = 1
    try:
        sys.argv[1:] = arguments
        os.environ.update(environment)
        exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    programs = json.load(sys.stdin)
    results, sys.stdout = sys.stdout, sys.stderr  # what the import prints is no result
    exec(sys.argv[1])
    sys.stdout = results
    json.dump({name: run(*program) for name, program in programs.items()}, results)
