"""A field test's results so far, one file per step, so that it can resume."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caovand.adapters.files import state_file
from caovand.cli.common.errors import CommandError, Exit

SUBJECT = "subject"
STOPPED = "stopped"
"""The step that records that the service's engine was stopped for the test."""
KERNELS = "kernels"
"""A step with its own key, which survives a change of subject."""


class FieldtestResults:
    """The results in a folder; results of another subject are dropped, except the kernels'.

    `subject` identifies what is tested: configuration, releases, cards. It must match completely.
    """

    def __init__(self, folder: Path, subject: Mapping[str, Any], *, again: bool) -> None:
        self.folder = folder
        if again or self.of(SUBJECT) != subject:
            kept = {name: self.of(name) for name in (STOPPED, *(() if again else (KERNELS,)))}
            shutil.rmtree(folder, ignore_errors=True)
            for name, document in {SUBJECT: subject, **kept}.items():
                if document:
                    self.keep(name, document)

    def of(self, step: str) -> Any:
        """A step's result; None before it has run."""
        return state_file.read_or_none(self.folder / f"{step}.json")

    def keep(self, step: str, document: Any) -> None:
        """Store a step's result; raises CommandError."""
        keep(self.folder / f"{step}.json", document)

    def end(self) -> None:
        """Delete everything: the results are in the archive."""
        shutil.rmtree(self.folder, ignore_errors=True)


def keep(path: Path, document: Any) -> None:
    """Write a document, creating its folder; raises CommandError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        state_file.write(path, document)
    except OSError as problem:
        raise CommandError(
            Exit.FAILED,
            f"cannot write {path.parent}: {problem.strerror}",
            "free some space, correct its permissions, or set STATE_DIRECTORY",
        ) from None
