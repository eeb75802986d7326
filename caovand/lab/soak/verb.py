"""`caovanctl soak`: hours of mixed load on the served model, and a verdict."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import uuid

from caovand import __version__
from caovand.adapters.files.directories import own_directories
from caovand.adapters.network.http import Unanswered
from caovand.cli.common.client import connect
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.progress import Screen
from caovand.cli.common.verb import Verb
from caovand.core.health.canary import Degenerate
from caovand.core.problem import ProblemError
from caovand.lab import results
from caovand.lab.bench import target
from caovand.lab.bench.drive import BAD_KEY
from caovand.lab.bench.options import add_load
from caovand.lab.core.bench import prompts
from caovand.lab.core.soak import verdict
from caovand.lab.corpus import digest, texts
from caovand.lab.soak import show
from caovand.lab.soak.drive import Soak, SoakOrder
from caovand.lab.streamed import BadStatus

MIN_HOURS, MAX_HOURS = 0.005, 1000.0
CLIENTS = 4


def hours(text: str) -> float:
    """Parse a number of hours."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours such as 8") from None
    if not math.isfinite(value) or not MIN_HOURS <= value <= MAX_HOURS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: the hours must be from {MIN_HOURS:g} to {MAX_HOURS:g}"
        )
    return value


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "hours", type=hours, metavar="HOURS", help="duration in hours, such as 8 or 0.5"
    )
    add_load(parser, CLIENTS, who="clients", seeded="what the clients do")


def run(args: argparse.Namespace) -> int:
    known = texts()
    begun = time.time()
    with connect(args) as client:
        tested = target.find(client, args.api_key_file, "soak")
        order = SoakOrder(args.hours * 3600, args.at_once, args.seed, uuid.uuid4().hex[:12])
        screen = Screen(sys.stderr)
        try:
            soak = Soak(client, tested, order, prompts.passages(known), screen)
            seen = soak.run()
        except (Unanswered, Degenerate) as problem:
            raise _explain_failure(problem) from problem
        except ProblemError as problem:
            raise CommandError(
                Exit.FAILED, problem.problem.message, problem.problem.remedy
            ) from problem
        finally:
            screen.clear()
    checks = verdict.checks(seen)
    document = {
        "kind": "soak",
        "at": begun,
        "version": __version__,
        **tested.described,
        "hours": args.hours,
        "at_once": args.at_once,
        "seed": args.seed,
        "texts": digest(known),
        "complete": not soak.stopped,
        **show.document(seen, checks),
    }
    path, failed = None, None
    try:
        state = own_directories(os.environ, os.getuid()).state
        path = results.keep(state, document, prefix=results.SOAK)
    except results.NoResult as problem:
        failed = problem.problem
    if args.json:
        print(json.dumps({**document, "kept": str(path) if path else None}))
    else:
        for line in show.lines(document, checks, seen):
            print(line)
        if path:
            print(f"stored in {path}")
    if failed is not None:
        raise CommandError(Exit.FAILED, failed.message, failed.remedy)
    return Exit.DONE if verdict.has_passed(checks) else Exit.FAILED


def _explain_failure(problem: Exception) -> CommandError:
    """The error message for a failed first request."""
    if isinstance(problem, BadStatus) and problem.status in BAD_KEY:
        return target.refused_key("soak", problem.status)
    return CommandError(
        Exit.FAILED, f"cannot soak: the first requests failed: {problem}", "see `caovanctl logs`"
    )


VERB = Verb(
    name="soak",
    help="load the served model for hours and judge the result",
    description="Load the served model for hours like many clients, and judge the result: "
    "conversations that continue, short and long prompts, answers in JSON with a schema, "
    "clients that disconnect, streamed and whole answers, greedy and sampled, with pauses. "
    "Prompts are real text, chosen by --seed. Greedy answers recorded at the start are compared "
    "again and again, alone and under load. Fails on wrong answers, errors, restarts, "
    "incidents, growing memory or open files, slower answers, and drafts that are no longer "
    "accepted. Ctrl-C ends it early with the verdict so far. The result is stored with those of "
    "`bench`. Exit status: 0 passed, 1 failed.",
    epilog="example: caovanctl soak 8 --at-once 8",
    arguments=arguments,
    json="print the result as JSON",
    run=run,
    effects=True,
)
