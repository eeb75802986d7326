"""Format a field test's results as Markdown for posting, with measured next to modelled values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from caovand.lab.core.bench import record

COLUMNS = (
    "serving", "prompt", "at once", "prefill tok/s", "modelled", "decode tok/s", "modelled",
    "first token", "tok/J",
)  # fmt: skip
NOTHING = "-"
StepDocument = Mapping[str, Any]


def lines(
    facts: StepDocument, kernels: StepDocument | None, trials: Sequence[StepDocument]
) -> Iterator[str]:
    """The report. The arguments are documents of the steps, in order."""
    quick = "quick " * facts["quick"]
    yield f"# caovan {facts['version']}: {quick}field test of {facts['at']}"
    yield ""
    yield from _machine(facts)
    yield ""
    yield from _kernels(kernels)
    yield "## Serving"
    yield ""
    yield from _row(COLUMNS)
    yield from _row(["---"] * len(COLUMNS))
    for trial in trials:
        yield from _speeds(trial)
    yield ""
    yield from _others(trials)
    yield "## Memory and start"
    yield ""
    yield from _row(("serving", "start", "what", "forecast", "found", "off"))
    yield from _row(["---"] * 6)
    for trial in trials:
        yield from _forecast(trial)
    yield ""
    yield (
        "Modelled: tokens per second over all requests, by which the planner chooses between "
        "plans. Time to first token and tok/J are not modelled, nor is anything shown as "
        f"{NOTHING}. All values are medians; the archive has every round."
    )


def _machine(facts: StepDocument) -> Iterator[str]:
    machine = facts["inventory"]
    cards = machine["gpus"]
    for gpu in cards:
        yield f"- GPU {gpu['index']}: {gpu['name']}, {gpu['total_mib']:,} MiB"
    if not cards:
        yield "- no NVIDIA GPU"
    if cards and cards[0].get("driver"):
        yield f"- driver {cards[0]['driver']}"
    host, engine = machine["host"], machine["engine"]
    yield f"- {host['cpus']} cores, {host['ram_mib']:,} MiB of memory"
    yield f"- {facts['engine']} {engine['version']}, torch {engine.get('torch') or NOTHING}"
    yield f"- model {facts['model']}"
    order = facts["order"]
    rounds = f"{order['rounds']} round{'s' * (order['rounds'] > 1)}"
    tried = f"prompts of {_numbers(order['prompts'])} tokens, {_numbers(order['at_once'])} at once"
    yield f"- requested: {tried}, {rounds} of each"
    for check in facts["doctor"]["checks"]:
        if check["verdict"] != "PASS":
            yield f"- doctor, {check['verdict']}: {check['text']}"


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)


def _kernels(kernels: StepDocument | None) -> Iterator[str]:
    if kernels is None:
        return
    yield "## Kernels"
    yield ""
    if kernels["why"]:
        yield f"Not measured: {kernels['why']}."
    for part in kernels["parts"]:
        yield f"{part['title']}: {'done' if part['code'] == 0 else 'FAILED'}"
        yield ""
        yield from ("```", *part["text"].strip().splitlines(), "```", "")
    yield ""


def _rungs(trial: StepDocument) -> Sequence[str]:
    """The ladder's steps in the measured plan."""
    rungs: Sequence[str] = trial["plan"]["rungs"] if trial["plan"] else ()
    return rungs


def _title(trial: StepDocument) -> str:
    """Describe how the model was actually served, including the ladder's steps."""
    if not _rungs(trial):
        return str(trial["title"])
    word = "degraded" if trial["degraded"] else "rungs"
    return f"{trial['title']}, {word}: {', '.join(_rungs(trial))}"


def _speeds(trial: StepDocument) -> Iterator[str]:
    cells = (trial["bench"] or {"cells": ()})["cells"]
    for cell, modelled in zip(cells, trial["modelled"] or [{}] * len(cells), strict=True):
        requests = len(cell["rounds"]) * cell["at_once"]
        prompt = sum(round_["prompt_tokens"] for round_ in cell["rounds"]) / requests
        first = record.pooled(cell, "first_token_s", 0.5)
        yield from _row((
            _title(trial), f"{prompt:,.0f}", str(cell["at_once"]),
            _middle(cell, "prefill_tokens_per_s"), _whole(modelled.get("prefill")),
            _middle(cell, "decode_tokens_per_s"), _whole(modelled.get("decode")),
            NOTHING if first is None else f"{first * 1000:,.0f} ms",
            f"{cell['tokens_per_j']:.2f}" if cell["tokens_per_j"] else NOTHING,
        ))  # fmt: skip


def _whole(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def _middle(cell: StepDocument, name: str) -> str:
    values = record.values(cell, name)
    return f"{median(values):,.1f}" if values else NOTHING


def _others(trials: Sequence[StepDocument]) -> Iterator[str]:
    """Trials that were not measured as planned, or not at all, with the reason."""
    notes = []
    for trial in trials:
        if _rungs(trial):
            notes.append(f"- {_title(trial)}: {'; '.join(_causes(trial))}")
        notes += [f"- {trial['title']}: {text}" for text in trial.get("unused", ())]
        if trial["why"]:
            notes.append(f"- {trial['title']}: {trial['state']}: {trial['why']}")
    yield from notes
    if notes:
        yield ""


def _causes(trial: StepDocument) -> Iterator[str]:
    """List the ladder's changes with their reasons; also the failure, unless an earlier run had
    it."""
    if trial["degraded"]:
        yield from trial["degraded"]["why"]
    if trial["failure"]:
        yield f"last failure: {trial['failure']['text']}"


def _forecast(trial: StepDocument) -> Iterator[str]:
    start = NOTHING if trial["start_s"] is None else f"{trial['start_s']:.0f} s"
    forecast = trial["forecast"] or {}
    for name, figure in forecast.items():
        pair = (f"{figure['forecast']:,}", f"{figure['reported']:,}", f"{figure['off']:+.1%}")
        yield from _row((_title(trial), start, name.replace("_", " "), *pair))
    if not forecast and trial["state"] == "measured":
        yield from _row((_title(trial), start, *[NOTHING] * 4))


def _row(parts: Sequence[str]) -> Iterator[str]:
    yield f"| {' | '.join(parts)} |"
