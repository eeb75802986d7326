"""A field test's results so far, one file a step, so that it can resume."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caovand.adapters.files import state_file
from caovand.cli.common.errors import CommandError, Exit

SUBJECT = "subject"
STOPPED = "stopped"
"""The step that notes that the machine's own engine was stopped for the test."""
KERNELS = "kernels"
"""The step that survives a change of subject: it has a key of its own."""


class FieldtestResults:
    """The results in a folder; those of another subject are dropped, except the kernels'.

    `subject` is what is tested: configuration, releases, cards. It is compared whole.
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
        """The result of a step; None before it was taken."""
        return state_file.read_or_none(self.folder / f"{step}.json")

    def keep(self, step: str, document: Any) -> None:
        """Keep the result of a step; raises CommandError."""
        keep(self.folder / f"{step}.json", document)

    def end(self) -> None:
        """Drop everything: the results are in the archive."""
        shutil.rmtree(self.folder, ignore_errors=True)


def keep(path: Path, document: Any) -> None:
    """Write a document, with its folder; raises CommandError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        state_file.write(path, document)
    except OSError as problem:
        raise CommandError(
            Exit.FAILED,
            f"cannot write {path.parent}: {problem.strerror}",
            "free some space, correct its permissions, or set STATE_DIRECTORY",
        ) from None
