"""Parts of the live screen: each formats some of the daemon's reply as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from rich.text import Text

from caovand.cli.common import status_lines
from caovand.cli.common.drawing import (
    BARS,
    COLOURS,
    LEGEND,
    PLAIN_BARS,
    cells,
    number,
    sparkline,
)
from caovand.cli.top.view import CardProcess, EventLine, TerminalStyle
from caovand.core.figures.track import RECENT_S
from caovand.core.reporting import card_text

LABEL_COLUMNS = 12  # in front of a row's text
MAX_COLUMNS = 50
"""Width of a sparkline: the daemon reads an engine every 5 s, so each column has a reading."""
SPARK_NUMBERS = 31
CURRENT_S = 15.0
"""Maximum age of a current reading: an engine is read every 5 s while it runs."""
CARD_NUMBERS = 46
PROCESS_COLUMNS, MIN_COMMAND = 36, 20
"""Width of a process row without HOST_COLUMNS and command, and the command's minimum."""
HOST_COLUMNS = (("CPU", 7), ("host MiB", 10), ("time", 7))
LETTERS = {
    "weights": "W", "kv": "K", "states": "S", "context": "C", "activations": "A", "graphs": "G",
    "steps": "A", "compute": "B", "logits": "L", "prompts": "P", "engine": "E",
    "others": "o", "used": "#", "free": ".",
}  # fmt: skip
NAMES = {**LEGEND, "graphs": "graphs", "engine": "rest", "others": "others", "used": "used"}
SPARKS = (
    ("generation_tokens_per_s", "generated", "tokens/s"),
    ("prompt_tokens_per_s", "prompts", "tokens/s"),
    ("requests_per_s", "requests", "a second"),
)
"""List in the recent readings, label and unit."""


def progress(answer: Mapping[str, Any], width: int, look: TerminalStyle) -> Iterator[Text]:
    """A progress bar for the start, if its phase reports progress."""
    if answer["progress"] is not None and not answer["served"]:
        drawn = _gauge(answer["progress"], _columns(width, SPARK_NUMBERS), "cyan", look)
        yield status_lines.row("progress", "").append(drawn).append(f"  {answer['progress']:.0%}")


def speed(recent: Mapping[str, Any], width: int, look: TerminalStyle) -> Iterator[Text]:
    """Sparklines of five minutes of tokens and requests, with the latest reading and the
    maximum."""
    for name, label, unit in SPARKS:
        values = recent.get(name, ())
        known = [value for value in values if value is not None]
        if known:
            columns = _columns(width, SPARK_NUMBERS)
            drawn = sparkline(
                columns_of(recent["age_s"], values, columns), BARS if look.unicode else PLAIN_BARS
            )
            current = values[-1] if recent["age_s"][-1] < CURRENT_S else None
            now = "" if current is None else f"{number(current)} {unit}, "
            yield status_lines.row(label, drawn, "green").append(
                f"  {now}max {number(max(known))}", style="default"
            )


def columns_of(
    ages: Sequence[float], values: Sequence[float | None], columns: int
) -> list[float | None]:
    """Means of the readings in `columns` equal time spans of the last minutes; None for a span
    without readings."""
    spans: list[list[float]] = [[] for _ in range(columns)]
    for age, value in zip(ages, values, strict=False):
        if value is not None and 0 <= age < RECENT_S:
            spans[columns - 1 - int(age / RECENT_S * columns)].append(value)
    return [sum(span) / len(span) if span else None for span in spans]


def activity(figures: Mapping[str, Any], width: int, look: TerminalStyle) -> Iterator[Text]:
    """Running requests, cache use, latencies and drafts."""
    if figures.get("running") is None:
        return  # no engine answers
    under_way = f"{figures['running']:.0f} running, {figures['waiting']:.0f} waiting"
    if figures["prefix_hits"] is not None:
        under_way += f", prefix hits {figures['prefix_hits']:.0%}"
    yield status_lines.row("activity", under_way, "yellow" if figures["waiting"] else "")
    used = figures["kv_cache_usage"]
    colour = "yellow" if used > 0.9 else "green"
    drawn = _gauge(used, _columns(width, SPARK_NUMBERS), colour, look)
    yield (
        status_lines.row("KV cache", "").append(drawn).append(f"  {used:.0%} used", style="default")
    )
    yield from status_lines.pace(figures, width)


def cards(answer: Mapping[str, Any], width: int, look: TerminalStyle) -> Iterator[Text]:
    """A memory bar per card, the sizes of its parts, and throttling."""
    memory = {card["gpu"]: card for card in (answer.get("figures") or {}).get("memory", ())}
    seen: dict[str, float] = {}
    for gpu in answer["gpus"]:
        label = f"GPU {gpu['index']}"
        if gpu["fault"]:
            yield status_lines.row(label, gpu["fault"], "red")
            continue
        sizes = shares(gpu, memory.get(gpu["index"]))
        seen = {name: max(size, seen.get(name, 0.0)) for name, size in sizes.items()}
        line = status_lines.row(label, "")
        for name, count in cells(sizes, gpu["total_mib"], _columns(width, CARD_NUMBERS)):
            line.append(_glyph(name, look) * count, style=COLOURS[name])
        yield line.append(f"  {card_text.load(gpu)}", style="default")
        if slow := card_text.slowdown(gpu):
            yield status_lines.row("", slow, "yellow")
    named = [name for name, size in seen.items() if name != "free" and round(size)]
    if named and named != ["used"]:
        legend = status_lines.row("", "GiB:")
        for name in named:
            text = f"  {_glyph(name, look)} {NAMES[name]} {seen[name] / 1024:.1f}"
            if legend.cell_len + len(text) > width:
                yield legend
                legend = status_lines.row("", "    ")
            legend.append(text, style=COLOURS[name])
        yield legend


def shares(gpu: Mapping[str, Any], memory: Mapping[str, Any] | None) -> dict[str, float]:
    """A card's memory by part in MiB, in total never more than the driver reports.

    If processes cannot be distinguished, all memory in use is one part.
    """
    used = float(gpu["used_mib"])
    free = max(gpu["total_mib"] - used, 0.0)
    if memory is None or memory["engine_mib"] is None:
        return {"used": used, "free": free}
    engine = min(float(memory["engine_mib"]), used)
    sizes: dict[str, float] = {}
    left = engine
    for name, part in memory["parts"].items():
        sizes[name] = min(float(part["mib"]), left)
        left -= sizes[name]
    return {**sizes, "engine": left, "others": used - engine, "free": free}


def processes(rows: Sequence[CardProcess], width: int) -> Iterator[Text]:
    """Processes by card, largest memory first. Columns of host usage are dropped, the last one
    first, if commands need the width."""
    if not rows:
        return
    room = width - PROCESS_COLUMNS - MIN_COMMAND
    shown = [size for size in accumulate(size for _, size in HOST_COLUMNS) if size <= room]
    names = HOST_COLUMNS[: len(shown)]
    head = "".join(f"{name:>{size}}" for name, size in names)
    yield Text(f"  {'pid':>7} {'user':<10} GPU {'MiB':>8}{head}  command", style="dim")
    for one in sorted(rows, key=lambda process: (process.gpu, -process.mib, process.pid)):
        user, command = one.user or "?", one.command or "not visible from here"
        texts = zip(_host_use(one), names, strict=False)
        uses = "".join(f"{text:>{size}}" for text, (_, size) in texts)
        yield Text(f"  {one.pid:>7} {user[:10]:<10} {one.gpu:>3} {one.mib:>8,}{uses}  {command}")


def _host_use(process: CardProcess) -> tuple[str, str, str]:
    """Texts of HOST_COLUMNS, empty if unknown."""
    return (
        "" if process.cores is None else f"{process.cores:.0%}",
        "" if process.host_mib is None else f"{process.host_mib:,}",
        "" if process.age_s is None else status_lines.duration(process.age_s),
    )


def event_lines(events: Sequence[EventLine]) -> list[Text]:
    """The daemon's latest events, the newest last."""
    lines = []
    for event in events:
        style = {"failure": "red", "incident": "yellow"}.get(event.kind, "default")
        line = Text().append(f"  {event.moment}  {event.kind:<8} ", style="dim")
        lines.append(line.append(event.text, style=style))
    return lines


def _columns(width: int, numbers: int) -> int:
    """Number of columns left for a sparkline next to its numbers."""
    return max(min(width - LABEL_COLUMNS - numbers, MAX_COLUMNS), 8)


def _gauge(share: float, columns: int, style: str, look: TerminalStyle) -> Text:
    """A bar filled to `share`."""
    full = min(max(round(share * columns), 1 if share > 0 else 0), columns)
    done, rest = ("█", "░") if look.unicode else ("#", ".")
    return Text().append(done * full, style=style).append(rest * (columns - full), "bright_black")


def _glyph(name: str, look: TerminalStyle) -> str:
    return "█" if look.unicode and look.colour else LETTERS[name]
