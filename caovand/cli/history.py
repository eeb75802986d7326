"""`caovanctl history`: show engine and cards over hours or days, with all events."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from caovand.cli.common.client import ask
from caovand.cli.common.drawing import BARS, PLAIN_BARS, number, sparkline
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.printing import takes_unicode
from caovand.cli.common.verb import Verb

UNITS = {"m": 60, "h": 3600, "d": 86400}
COLUMNS = 60
MIB_IN_GIB = 1024
ROWS = (
    ("up", "serving", "%", 0.01),
    ("generation_tokens_per_s", "generated", "tokens/s", 1.0),
    ("prompt_tokens_per_s", "prompts", "tokens/s", 1.0),
    ("requests", "requests", "", 1.0),
    ("running", "running", "", 1.0),
    ("waiting", "waiting", "", 1.0),
    ("kv_cache_usage", "KV cache", "%", 0.01),
    ("prefix_hits", "prefix hits", "%", 0.01),
    ("tokens_per_step", "tokens/step", "", 1.0),
    ("first_token_p50_s", "first token", "ms", 0.001),
    ("first_token_p99_s", "  99 % within", "ms", 0.001),
    ("token_p50_s", "per token", "ms", 0.001),
    ("token_p99_s", "  99 % within", "ms", 0.001),
)
"""Name in the reply, label, unit and divisor."""
CARD_ROWS = (
    ("used_mib", "memory", "GiB", float(MIB_IN_GIB)),
    ("utilization", "busy", "%", 1.0),
    ("temperature", "temperature", "°C", 1.0),
    ("power_w", "power", "W", 1.0),
    ("throttled", "slowed down", "%", 0.01),
)


def duration(text: str) -> float:
    """Parse a duration such as 90m, 24h or 7d into seconds."""
    match = re.fullmatch(r"(\d{1,6})([mhd])", text)
    if match is None or not 60 <= int(match[1]) * UNITS[match[2]] <= 366 * UNITS["d"]:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a length from 1m to 366d, such as 90m or 24h"
        )
    return float(int(match[1]) * UNITS[match[2]])


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        type=duration,
        default="24h",
        metavar="LENGTH",
        help="how far back: minutes, hours or days, such as 90m, 24h or 7d (default 24h)",
    )
    parser.add_argument(
        "--until",
        type=duration,
        metavar="LENGTH",
        help="how far back it ends (default now)",
    )


def run(args: argparse.Namespace) -> int:
    ago = args.until or 0.0
    if args.since - ago < UNITS["m"]:
        fact = "cannot show a history: --until is less than a minute shorter than --since"
        raise CommandError(Exit.USAGE, fact, "name a longer --since, or a shorter --until")
    more: dict[str, float] = {} if args.json else {"points": COLUMNS}
    if ago:
        more["until"] = time.time() - ago
    answer = ask(args, "history", seconds=args.since - ago, **more)
    if args.json:
        print(json.dumps(answer))
        return Exit.DONE
    if not answer["at"] and not answer["marks"]:
        raise CommandError(
            Exit.FAILED,
            "cannot show a history: none was recorded for that time",
            answer["problem"]
            or "the daemon records the first row after a minute: try again then, or use a "
            "longer --since",
        )
    bars = BARS if takes_unicode(sys.stdout) else PLAIN_BARS
    for line in lines(answer, bars, ago):
        print(line)
    return Exit.DONE


def lines(answer: Mapping[str, Any], bars: str = BARS, ago: float = 0.0) -> Iterator[str]:
    """Format the history for people; it ends `ago` seconds ago."""
    begin, step = answer["since"] // answer["step_s"] * answer["step_s"], answer["step_s"]
    slots = range(begin, answer["until"], step)
    yield f"from {_moment(begin)} to {_moment(answer['until'])}, {_step(step)} per column"
    yield from _table(answer["at"], answer["figures"], ROWS, slots, bars)
    for gpu, card in answer["cards"].items():
        yield f"GPU {gpu}"
        yield from _table(card["at"], card, CARD_ROWS, slots, bars)
    if left_out := answer.get("marks_left_out"):  # daemons from earlier releases count none
        # Whole minutes: the minute of the earliest event shown repeats, so that none is missed.
        minutes = max(int(ago + answer["until"] - answer["marks"][0]["at"]) // UNITS["m"], 1)
        yield f"{left_out:,} earlier events are omitted; `--until {minutes}m` shows them"
    for mark in answer["marks"]:
        yield f"{_moment(mark['at'], seconds=True)}  {mark['kind']:<8} {mark['text']}"
    if answer["problem"]:
        yield f"warning: {answer['problem']}"


def _table(
    at: Sequence[int],
    figures: Mapping[str, Sequence[float | None]],
    rows: Sequence[tuple[str, str, str, float]],
    slots: range,
    bars: str,
) -> Iterator[str]:
    for name, label, unit, size in rows:
        values = dict(zip(at, figures.get(name, ()), strict=False))
        known = [value / size for value in values.values() if value is not None]
        if known:
            drawn = sparkline([values.get(moment) for moment in slots], bars)
            mean, most = sum(known) / len(known), max(known)
            numbers = f"mean {number(mean)}, max {number(most)} {unit}".rstrip()
            yield f"  {label:<13} {drawn}  {numbers}"


def _step(seconds: int) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _moment(at: float, *, seconds: bool = False) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M", time.localtime(at))


VERB = Verb(
    name="history",
    help="show speed, requests and cards over hours or days",
    description="Show speed, requests and cards over time, with each restart, mode, rung and "
    "incident. The daemon keeps a row per minute for [history] days. A column that covers "
    "several minutes shows the mean of their medians and the largest of their 99th percentiles.",
    epilog="example: caovanctl history --since 7d",
    arguments=arguments,
    json="print it as JSON, in shorter steps",
    run=run,
)
