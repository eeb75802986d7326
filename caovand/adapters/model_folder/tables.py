"""Read the JSON files of a model's folder, and say why one cannot be read."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from caovand.adapters.files import safe_files
from caovand.core.checkpoint.budget import BadHeader, Budget, TooLarge
from caovand.core.problem import ProblemError

# Real ones: config.json 0.1 MiB, a tokenizer's 2, DeepSeek's index 9, Kimi K2's 14 with 140,000
# tensors, Qwen3.5-397B's in GPTQ 42 with 370,000. Parsing blocks every thread, for a time
# proportional to the number of values.
MAX_BYTES = {"tokenizer_config.json": 16 << 20, "model.safetensors.index.json": 80 << 20}
MAX_OTHER_BYTES = 2 << 20
MAX_VALUES = 600_000
ANOTHER = "serve another checkpoint of the model"
"""The remedy for files beyond a limit, which another download would not shrink."""


class ModelProblem(ProblemError):
    """The model in this folder cannot be served."""


def read_table(folder: Path, name: str, budget: Budget) -> dict[str, Any] | None:
    """Read the table in this file; None if there is no such file."""
    content = read_json(folder, name, budget)
    if content is not None and not isinstance(content, dict):
        problem = f"read {folder / name}", "it contains no table", "download the file again"
        raise ModelProblem(*problem)
    return content


def read_json(folder: Path, name: str, budget: Budget) -> Any:
    """Read the JSON document in this file; None if there is no such file."""
    path = folder / name
    try:
        data = safe_files.read(path, MAX_BYTES.get(name, MAX_OTHER_BYTES))
        return budget.json(data, MAX_VALUES)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise unreadable_problem(str(path), folder) from None
    except OSError as problem:
        damaged = problem.errno in (errno.EINVAL, errno.EISDIR)
        remedy = "download the file again" if damaged else "check the disk"
        remedy = ANOTHER if problem.errno == errno.EFBIG else remedy
        raise ModelProblem(f"read {path}", str(problem.strerror), remedy) from problem
    except BadHeader as problem:
        remedy = ANOTHER if isinstance(problem, TooLarge) else "download the file again"
        raise ModelProblem(f"read {path}", str(problem), remedy) from None


def unreadable_problem(what: str, folder: Path, more: int = 0) -> ModelProblem:
    """The problem for existing files that this user cannot read."""
    others = f" and {more} more files" if more else ""
    return ModelProblem(
        f"read {what}{others}",
        "this user cannot read it",
        f"run `chmod -R a+rX {folder}` and let others enter the folders above it",
    )
