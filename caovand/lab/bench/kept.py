"""`caovanctl bench --list`: stored results by number, and the files that --compare refers to."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from caovand.adapters.files.directories import own_directories
from caovand.cli.common.errors import Exit
from caovand.core.printable import one_line
from caovand.lab import results
from caovand.lab.core.bench import record

UNREADABLE_ERRORS = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError)
"""Raised for a document with missing, mistyped or out-of-range parts."""
MAX_DIGITS = 9
"""A longer number is a file name."""


def show(args: argparse.Namespace) -> int:
    """List kept results, newest first."""
    state = own_directories(os.environ, os.getuid()).state
    rows, others = _rows(state)
    if args.json:
        print(json.dumps(rows))
    else:
        for line in _lines(rows):
            print(line)
        if not rows:
            print(f"no results in {state}; measure with: caovanctl bench")
    for path in others:
        print(f"note: omitting {path}, which is not a result of this release", file=sys.stderr)
    return Exit.DONE


def path_of(word: str) -> Path:
    """The file that --compare names, or the result with this number; raises NoResult."""
    if not word.isascii() or not word.isdigit() or len(word) > MAX_DIGITS:
        return Path(word)
    rows, _ = _rows(own_directories(os.environ, os.getuid()).state)
    for row in rows:
        if row["number"] == int(word):
            return Path(row["path"])
    raise results.NoResult(
        f"compare result {word}",
        f"{len(rows)} {'exists' if len(rows) == 1 else 'exist'}",
        f"see `caovanctl bench --list`; for a file of this name, write ./{word}",
    )


def _rows(state: Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """Every result below the folder `state`, newest first, and the files that are not results."""
    rows, others = [], []
    for path in results.paths(state):
        try:
            rows.append(_row(path, results.load(path)))
        except (results.NoResult, *UNREADABLE_ERRORS):
            others.append(path)
    rows.sort(key=lambda row: (row["at"], row["path"]), reverse=True)
    return [{"number": number, **row} for number, row in enumerate(rows, 1)], others


def _row(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Summarise a result by the cell with the shortest prompts and the lowest concurrency."""
    first, at = document["cells"][0], float(document["at"])
    time.localtime(at)  # raises if that is no valid time
    paces = record.values(first, "decode_tokens_per_s")
    return {
        "at": at,
        "model": one_line(document["model"]),
        "served_name": one_line(document["served_name"]),
        "fingerprint": one_line(document["fingerprint"]),
        "complete": bool(document["complete"]),
        "prompt": int(first["prompt"]),
        "at_once": int(first["at_once"]),
        "decode_tokens_per_s": median(paces) if paces else None,
        "path": str(path),
    }


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if rows:
        yield f"{'':4}  {'when':16}  {'plan':16}     prompt at once decode tok/s  model"
    for row in rows:
        pace, moment = row["decode_tokens_per_s"], time.localtime(row["at"])
        yield (
            f"{row['number']:>4}  {time.strftime('%Y-%m-%d %H:%M', moment)}"
            f"  {row['fingerprint']:16}  {row['prompt']:>9,} {row['at_once']:>7}"
            f" {'-' if pace is None else f'{pace:,.1f}':>12}  {row['served_name']}"
            f"{'' if row['complete'] else ' (stopped early)'}"
        )
