"""Groups of verbs that manage one kind of thing in a folder, such as engines or models.

They share --root, --json, error handling and output. Only the standard library is imported here, as
`caovanctl engine` requires.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from caovand.cli.common.errors import CommandError
from caovand.cli.common.verb import Verb
from caovand.core.config.schema import Config
from caovand.core.problem import Problem, ProblemError
from caovand.core.reporting.wire import failure_fields

CONTINUE = "run the same command again to continue"


@dataclass(frozen=True)
class VerbFamily:
    """Verbs that manage one kind of thing.

    `things` is their name in help; `variable` names the environment variable for their folder,
    whose default is `root`. `error` ends a verb with exit status 1 and `code`. `after_os_error` is
    the remedy after an operating system error.
    """

    things: str
    variable: str
    root: Path
    error: type[ProblemError]
    code: str
    after_os_error: str = CONTINUE

    def verb(
        self,
        name: str,
        help: str,
        *,
        example: str,
        run: Callable[[argparse.Namespace], int],
        arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None,
        description: str = "",
        effects: bool = False,
    ) -> Verb:
        """Define one of the verbs; `run` may raise the family's error."""

        def all_arguments(parser: argparse.ArgumentParser) -> None:
            default = f"${self.variable}, else {self.root}"
            described = f"{self.things}' folder (default: {default})"
            parser.add_argument("--root", metavar="DIR", help=described)
            parser.add_argument("--json", action="store_true", help="print the result as JSON")
            arguments(parser)

        return Verb(
            name=name,
            help=help,
            description=description,
            epilog=f"example: {example}",
            arguments=all_arguments,
            run=lambda args: self._run_verb(run, args),
            effects=effects,
        )

    def root_of(self, args: argparse.Namespace, of_daemon: Callable[[Config], Path | None]) -> Path:
        """The folder to list: as named, else the running daemon's, else the system's."""
        named = args.root or os.environ.get(self.variable)
        if named:
            return Path(named).absolute()
        with contextlib.suppress(ImportError, CommandError):
            # Plain Python lists engines too, without the libraries for querying a daemon.
            from caovand.cli.common import survey  # noqa: PLC0415

            if (source := survey.daemon_config(survey.running(args.runtime))) is not None:
                return of_daemon(survey.configuration(source)) or self.root
        return self.root

    def _run_verb(self, run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
        """Run a verb; errors go to stderr, and with --json to stdout too."""
        try:
            return run(args)
        except self.error as error:
            return _report_failure(args, self.code, error.problem)
        except KeyboardInterrupt:
            print(file=sys.stderr)  # puts the message on the line below ^C
            return _report_failure(args, "interrupted", Problem("", "stopped", CONTINUE))
        except BrokenPipeError:
            raise  # the reader of our output has gone away
        except OSError as error:
            failed = Problem("continue", str(error), self.after_os_error)
            return _report_failure(args, "os-error", failed)


def _report_failure(args: argparse.Namespace, code: str, problem: Problem) -> int:
    if args.json:
        print(json.dumps(failure_fields(code, problem.message, problem.remedy)))
    print(f"caovanctl: {problem}", file=sys.stderr)
    return 1
