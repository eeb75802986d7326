"""`caovanctl bench`: measure the served model as its clients see it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from collections.abc import Mapping
from typing import Any

from caovand.adapters.files.directories import own_directories
from caovand.cli.common.client import connect
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.verb import Verb
from caovand.core.problem import ProblemError
from caovand.lab import results
from caovand.lab.bench import kept, show, target
from caovand.lab.bench.drive import BenchOrder, measure
from caovand.lab.bench.options import MAX_NUMBER, add_load, number, numbers
from caovand.lab.core.bench import compare

PROMPTS = (512, 4096, 32768, 100_000)
CONCURRENCY = (1, 2, 4, 8)
MAX_ROUNDS = 30


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prompts",
        type=numbers(MAX_NUMBER),
        metavar="TOKENS,...",
        help="prompt lengths in tokens (default: those of 512,4096,32768,100000 that fit the "
        "context)",
    )
    parser.add_argument(
        "--tokens",
        type=number(MAX_NUMBER),
        default=128,
        metavar="N",
        help="tokens to generate per request (default 128)",
    )
    parser.add_argument(
        "--rounds",
        type=number(MAX_ROUNDS),
        default=5,
        metavar="N",
        help="rounds per measurement (default 5, the minimum for --compare)",
    )
    add_load(parser, CONCURRENCY, who="requests at once", seeded="the passages used as prompts")
    kept_ones = parser.add_mutually_exclusive_group()
    kept_ones.add_argument(
        "--list",
        action="store_true",
        help="do not measure: list the stored results with their numbers, newest first",
    )
    kept_ones.add_argument(
        "--compare",
        nargs=2,
        metavar="FILE|N",
        help="do not measure: compare two stored results, by file or by number in --list",
    )


def run(args: argparse.Namespace) -> int:
    try:
        if args.list:
            return kept.show(args)
        return _compare(args) if args.compare else _measure(args)
    except ProblemError as error:
        problem = error.problem
        raise CommandError(Exit.FAILED, problem.message, problem.remedy) from error


def _compare(args: argparse.Namespace) -> int:
    paths = [kept.path_of(word) for word in args.compare]
    a, b = map(results.load, paths)
    try:
        rows, differing = list(compare.rows(a, b)), compare.differing_conditions(a, b)
    except (LookupError, TypeError, AttributeError) as problem:
        raise results.NoResult(
            "compare these results",
            f"one of them lacks {problem}",
            "name files that `caovanctl bench` wrote, unchanged",
        ) from problem
    if not rows:
        raise results.NoResult(
            "compare these results",
            "they share no combination of prompt length and concurrency",
            "measure both with the same --prompts and --at-once",
        )
    if args.json:
        files = [str(path) for path in paths]
        print(json.dumps({"files": files, **show.comparison(rows, differing)}))
    else:
        for name, path in zip("AB", paths, strict=True):
            print(f"{name} is {path}")
        for line in show.side_by_side(rows, differing):
            print(line)
    return Exit.DONE


def _measure(args: argparse.Namespace) -> int:
    with connect(args) as client:
        tested = target.find(client, args.api_key_file)
        tokens = 1 if tested.work else args.tokens
        lengths = target.lengths(tested, args.prompts, PROMPTS, tokens)
        order = BenchOrder(
            lengths, args.at_once, args.rounds, tokens, args.seed, uuid.uuid4().hex[:12]
        )
        document, cut = measure(client, tested, order)
    if document["cells"]:
        _show(args, document)
    if cut is None:
        return Exit.DONE
    if cut.error is None:
        print(f"stopped: {len(document['cells'])} of {order.cells} measured", file=sys.stderr)
        raise KeyboardInterrupt
    raise cut.error


def _show(args: argparse.Namespace, document: Mapping[str, Any]) -> None:
    """Store a result and print it, even if it cannot be stored."""
    path, failed = None, None
    try:
        path = results.keep(own_directories(os.environ, os.getuid()).state, document)
    except results.NoResult as problem:
        failed = problem
    if args.json:
        print(json.dumps({**document, "kept": str(path) if path else None}))
    else:
        for line in show.lines(document):
            print(line)
    if failed is not None:
        raise failed
    if not args.json:
        print(f"stored in {path}")


VERB = Verb(
    name="bench",
    help="measure the served model as clients see it",
    description="Measure the served model as its clients see it: real text of several languages "
    "and code, prompts of several lengths, several requests at once, answers streamed. Each "
    "prompt begins with unique words, so that it cannot hit the prefix cache. Shows prefill and "
    "decode speed, times, drafts accepted by position, and tokens per joule if the cards report "
    "energy and were busy for most of the time. It competes with other clients. Each result is "
    "stored, with all rounds, in a folder named after the plan's fingerprint.",
    epilog="examples: caovanctl bench --prompts 512,4096 --at-once 1,8; caovanctl bench --list;"
    " caovanctl bench --compare 2 1",
    arguments=arguments,
    json="print the result as JSON",
    run=run,
)
