"""Format results of `caovanctl bench` for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Any

from caovand.core.model_task import TITLES
from caovand.lab.core.bench import compare, record
from caovand.lab.core.bench.compare import FigureChange, RoundSpread
from caovand.lab.results import headline

COLUMNS = (
    "prompt", "at once", "prefill tok/s", "decode tok/s", "first token", "token p50", "p99",
    "tok/J",
)  # fmt: skip
WORDS = {
    "prefill_tokens_per_s": ("prefill", "tok/s", 1.0),
    "decode_tokens_per_s": ("decode", "tok/s", 1.0),
    "first_token_s": ("first token", "ms", 1000.0),
    "token_s": ("per token", "ms", 1000.0),
}
WIDTHS = (9, 8, 14, 13, 12, 11, 10, 8)
NOTHING = "-"


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Format one result."""
    yield headline(document)
    cells = document["cells"]
    rounds = len(cells[0]["rounds"])
    figures = f"medians of {rounds} rounds" if rounds > 1 else "one round"
    task = document.get("task", "generate")
    asked = f"{document['tokens']} tokens generated per request"
    if task != "generate":
        asked = f"{TITLES[task]}: the whole answer arrives at the time to the first token"
    yield f"{asked}, seed {document['seed']}; {figures}"
    yield _row(COLUMNS)
    for cell in cells:
        yield _row(_figures(cell))
    yield from _drafts(cells)
    yield from _conditions(cells)


def _row(parts: Sequence[str]) -> str:
    padded = (part.rjust(width) for part, width in zip(parts, WIDTHS, strict=True))
    return "".join(padded)


def _figures(cell: Mapping[str, Any]) -> tuple[str, ...]:
    requests = len(cell["rounds"]) * cell["at_once"]
    prompt = sum(round_["prompt_tokens"] for round_ in cell["rounds"]) / requests
    return (
        f"{prompt:,.0f}",
        str(cell["at_once"]),
        _middle(cell, "prefill_tokens_per_s", 1),
        _middle(cell, "decode_tokens_per_s", 1),
        _ms(record.pooled(cell, "first_token_s", 0.5)),
        _ms(record.pooled(cell, "token_s", 0.5)),
        _ms(record.pooled(cell, "token_s", 0.99)),
        f"{cell['tokens_per_j']:.2f}" if cell["tokens_per_j"] else NOTHING,
    )


def _middle(cell: Mapping[str, Any], name: str, digits: int) -> str:
    values = record.values(cell, name)
    return f"{median(values):,.{digits}f}" if values else NOTHING


def _ms(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds * 1000:,.1f} ms"


def _drafts(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for cell in cells:
        if drafting := cell["drafting"]:
            shares = " ".join(f"{share:.0%}" for share in drafting["accepted"])
            yield (
                f"drafts, prompts of {cell['prompt']:,}, {cell['at_once']} at once: accepted"
                f" {shares} by position, {drafting['tokens_per_step']:.2f} tokens per step"
            )


def _conditions(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    hits = [cell["prefix_hits"] for cell in cells if cell["prefix_hits"] is not None]
    if hits:
        yield f"prefix cache: {mean(hits):.1%} of the prompt tokens were hits"
    if waited := sum(cell["preemptions"] or 0 for cell in cells):
        yield f"warning: {waited} requests were preempted for lack of KV cache"
    if others := sum(cell["others"] or 0 for cell in cells):
        yield (f"warning: {others} other requests ran at the same time and slowed these down")
    if any(cell["others"] is None for cell in cells):
        yield "draft and prefix-hit rates are omitted if the daemon did not see every request"


def comparison(
    rows: Sequence[FigureChange], differing: Mapping[str, tuple[Any, Any]]
) -> dict[str, Any]:
    """A comparison as a document."""
    return {
        "noise": compare.NOISE,
        "differing": {name: list(pair) for name, pair in differing.items()},
        "rows": [{**vars(row), "a": vars(row.a), "b": vars(row.b)} for row in rows],
    }


def side_by_side(
    rows: Sequence[FigureChange], differing: Mapping[str, tuple[Any, Any]]
) -> Iterator[str]:
    """Compare two results: median, minimum and maximum of the rounds, and the verdict on B."""
    for name, (a, b) in differing.items():
        yield f"{name.replace('_', ' ')}: A {a}, B {b}"
    yield f"{'prompt':>8} {'at once':>7}  {'':<17} {'A':>27} {'B':>27}  {'change':>7}  B is"
    for row in rows:
        label, unit, size = WORDS[row.figure]
        chance = "" if row.chance is None else f" (p {row.chance:.3f})"
        yield (
            f"{row.prompt:>8,} {row.at_once:>7}  {f'{label}, {unit}':<17}"
            f" {_spread(row.a, size):>27} {_spread(row.b, size):>27}"
            f"  {row.change:>+7.1%}  {row.verdict}{chance}"
        )
    yield (
        "A and B are medians of the rounds, with the minimum and the maximum. Noise: Wilcoxon's"
        f" exact rank-sum test (two-sided) gives p above {compare.NOISE:g}."
    )


def _spread(spread: RoundSpread, size: float) -> str:
    middle, least, most = (
        f"{value * size:,.1f}" for value in (spread.median, spread.least, spread.most)
    )
    return f"{middle} ({least} to {most})"
