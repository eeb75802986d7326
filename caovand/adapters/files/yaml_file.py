"""Read a YAML file with the library of an engine's own environment: caovan itself needs none."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from caovand.adapters.files import safe_files, trust
from caovand.core.problem import ProblemError

MAX_BYTES = 1 << 20
TIMEOUT_S = 60.0
SCRIPT = """
import json, sys, yaml
try:
    print(json.dumps(yaml.safe_load(sys.stdin.buffer.read()), default=str))
except yaml.YAMLError as problem:
    sys.exit(" ".join(str(problem).split()))
"""


def read(path: str, python: str) -> Any:
    """Read the document in this file with a trusted Python; raises ProblemError."""
    try:
        data = safe_files.read(Path(path).absolute(), MAX_BYTES)
    except OSError as problem:
        raise ProblemError(
            f"read {path}", str(problem.strerror), "choose a readable file of at most a MiB"
        ) from None
    try:
        done = subprocess.run(
            [python, "-I", "-c", SCRIPT],
            input=data,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd="/",
            env=trust.own_environ(os.environ),
        )
        if done.returncode == 0:
            return json.loads(done.stdout)
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {done.returncode}"
    except (OSError, subprocess.SubprocessError, ValueError, RecursionError) as problem:
        reason = str(problem)
    raise ProblemError(f"read {path}", f"{python} cannot: {reason[:300]}", "correct the file")
