"""Character graphics for several verbs: metrics over time, and a card's memory by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

BARS = " ▁▂▃▄▅▆▇█"
PLAIN_BARS = " .:-=+*#@"
COLOURS = {
    "weights": "blue", "kv": "green", "states": "bright_green", "context": "magenta",
    "activations": "yellow", "graphs": "cyan", "steps": "yellow", "compute": "yellow",
    "logits": "cyan", "prompts": "magenta", "engine": "white", "others": "red", "used": "white",
    "free": "bright_black",
}  # fmt: skip
LEGEND = {
    "weights": "weights", "kv": "cache", "states": "states", "context": "CUDA",
    "activations": "activations", "graphs": "CUDA graphs", "steps": "activations and graphs",
    "compute": "compute buffers", "logits": "logits", "prompts": "earlier prompts",
    "others": "used by others", "free": "free",
}  # fmt: skip


def sparkline(values: Sequence[float | None], bars: str = BARS) -> str:
    """One character per value, blank if unknown or 0; the tallest is the maximum."""
    most = max((value for value in values if value is not None), default=0.0)
    top = len(bars) - 1
    return "".join(
        bars[0] if not value or most <= 0 else bars[max(round(value / most * top), 1)]
        for value in values
    )


def cells(sizes: Mapping[str, float], total: float, width: int) -> Iterator[tuple[str, int]]:
    """Number of characters, out of `width`, for each part of `total`; never more than `width` in
    total."""
    drawn, done = 0.0, 0
    for name, size in sizes.items():
        drawn += size
        end = min(round(drawn / total * width), width)
        yield name, end - done
        done = end


def number(value: float) -> str:
    """Format a number with a readable number of digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
