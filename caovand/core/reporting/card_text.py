"""Describe a card's latest sample in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def reading(gpu: Mapping[str, Any]) -> str:
    """A card's load and throttling, or its fault."""
    if gpu["fault"]:
        return str(gpu["fault"])
    return ", ".join(filter(None, [load(gpu), slowdown(gpu)]))


def load(gpu: Mapping[str, Any]) -> str:
    """A card's memory, utilisation, temperature and power."""
    parts = [f"{gpu['used_mib']:,} of {gpu['total_mib']:,} MiB"]
    for name, unit in (("utilization", "% busy"), ("temperature", " °C"), ("power_w", " W")):
        if gpu[name] is not None:
            parts.append(f"{gpu[name]:.0f}{unit}")
    return ", ".join(parts)


def slowdown(gpu: Mapping[str, Any]) -> str:
    """Why a card is throttled; empty if it is not."""
    return f"slowed down by {gpu['throttled']}" if gpu["throttled"] else ""


def card_kinds(cards: Iterable[tuple[str, float]]) -> str:
    """Names and memory by kind: "2 × NVIDIA A10 (22 GiB)". Drivers report cards of one kind a few
    MiB apart."""
    counts = Counter(f"{name} ({round(mib / 1024)} GiB)" for name, mib in cards)
    return ", ".join(f"{count} × {kind}" for kind, count in sorted(counts.items()))
