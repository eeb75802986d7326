"""Options that `bench` and `soak` share, and parsers of numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

MAX_NUMBER = 1 << 24
MAX_AT_ONCE = 256


def numbers(most: int) -> Any:
    """Return an argparse type for lists such as 512,4096: distinct integers from 1 to `most`."""

    def read(text: str) -> tuple[int, ...]:
        parts = [part.strip() for part in text.split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 1,2,4")
        values = tuple(map(int, parts))
        if not all(1 <= value <= most for value in values) or len(set(values)) < len(values):
            raise argparse.ArgumentTypeError(
                f"{text!r}: each number must be from 1 to {most}, without duplicates"
            )
        return tuple(sorted(values))

    return read


def number(most: int) -> Any:
    """A parser of one whole number from 1 to `most`."""

    def read(text: str) -> int:
        values = numbers(most)(text)
        if len(values) != 1:
            raise argparse.ArgumentTypeError(f"{text!r} is not a single number")
        return int(values[0])

    return read


def add_load(
    parser: argparse.ArgumentParser, at_once: int | tuple[int, ...], *, who: str, seeded: str
) -> None:
    """Add --at-once with this default for `who`, --seed that chooses `seeded`, and
    --api-key-file."""
    several = isinstance(at_once, tuple)
    default = ",".join(map(str, at_once)) if isinstance(at_once, tuple) else at_once
    parser.add_argument(
        "--at-once",
        type=(numbers if several else number)(MAX_AT_ONCE),
        default=at_once,
        metavar="N,..." if several else "N",
        help=f"how many {who} (default {default})",
    )
    parser.add_argument(
        "--seed",
        type=number(MAX_NUMBER),
        default=1,
        metavar="N",
        help=f"chooses {seeded} (default 1)",
    )
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with the engine's API key (default: the one in the daemon's configuration)",
    )
