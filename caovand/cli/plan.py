"""`caovanctl plan`: show the command line that would run, the reason for each part, and whether it
fits."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from caovand.adapters.engine.choice import chosen_engine
from caovand.cli.common import candidates
from caovand.cli.common.alternatives import alternatives
from caovand.cli.common.console import console
from caovand.cli.common.drawing import COLOURS, LEGEND, cells
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.over_nodes import over_nodes
from caovand.cli.common.planned import PlannedEngine, plan_for, remembered_here, tuned_here
from caovand.cli.common.survey import (
    add_config,
    asked_config,
    cache_of,
    chosen_mode,
    inspect,
    read_first,
    running,
)
from caovand.cli.common.verb import Group, Verb
from caovand.core.config.schema import MODES, Config
from caovand.core.engine.record import Engine
from caovand.core.facts import occupancy
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.forecast import MemoryEstimate, RankForecast
from caovand.core.facts.inventory import Gpu
from caovand.core.secrets import shown_value

BAR = 60
ORIGINS = {"user": "bold", "ladder": "yellow", "remembered": "yellow"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="instead of [model] path")
    add_config(parser)
    parser.add_argument(
        "--inventory", type=Path, metavar="FILE", help="a saved inventory instead of this machine"
    )
    parser.add_argument(
        "--engine",
        choices=candidates.KINDS,
        help="this kind of engine instead of the chosen one, or all kinds side by side",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="plan for this mode, as if `caovanctl mode` had chosen it",
    )


def run(args: argparse.Namespace) -> int:
    daemon = {} if args.inventory else running(args.runtime)
    mode = args.mode or chosen_mode(daemon, args.inventory)
    config, source = asked_config(args.config, daemon, args.model)
    if config.cluster.role == "worker":
        head = config.cluster.head
        text = f"cannot plan: this machine is a worker of {head}, and the head makes the plan"
        raise CommandError(Exit.FAILED, text, "run `caovanctl plan` on the head")
    kept = remembered_here(args.inventory)
    records = tuned_here(args.inventory)

    def plan(config: Config) -> PlannedEngine:
        model = None if args.inventory else read_first(config)
        machine = inspect(config, args.inventory, daemon.get("engine_pid"), source=source)
        inventory = machine.with_model(config, model)
        over = over_nodes(inventory, args.runtime, ask=bool(daemon))
        made = plan_for(
            config, over.inventory, mode, kept, cache_of(daemon), records, no_rdma=over.no_rdma
        )
        if not over.warning or chosen_engine(config).nodes is None or not made.inventory.others:
            return made
        caveats = (*made.plan.caveats, over.warning)
        return replace(made, plan=replace(made.plan, caveats=caveats))

    if args.engine == candidates.ALL_KINDS:
        every = list(candidates.candidates(config, plan))
        if args.json:
            print(json.dumps(candidates.as_json(every, config)))
        else:
            candidates.show(every, config, console())
        return Exit.DONE if any(candidate.planned for candidate in every) else Exit.FAILED
    config = candidates.with_engine(config, args.engine) if args.engine else config
    planned = plan(config)
    others = _instead_of(chosen_engine(config), planned)
    if args.json:
        offered = [{"text": other.text, "remedy": other.remedy} for other in others]
        print(json.dumps({**planned.as_json(), "alternatives": offered}))
    else:
        print_plan(planned, console())
        for other in others:
            console().print(Text(f"instead: {other.text}; {other.remedy}"))
    return Exit.FAILED if planned.refusal else Exit.DONE


def _instead_of(engine: Engine, planned: PlannedEngine) -> tuple[CheckResult, ...]:
    """Other engines' offers in place of this plan; none if its speed is not modelled."""
    machine, fits = planned.inventory, planned.memory is None or planned.memory.fits is not False
    tokens_s = engine.planning.speed(planned.plan, machine) if fits and not planned.refusal else 0.0
    if tokens_s is None:
        return ()
    return tuple(alternatives(engine, machine.model, machine.gpus, machine.host, tokens_s))


def print_plan(planned: PlannedEngine, console: Console) -> None:
    """Print the plan for people."""
    table = Table("setting", "value", "from", "why", box=None, pad_edge=False)
    settings = {**planned.plan.settings, **planned.plan.env}
    for name, setting in settings.items():
        value = shown_value(name, setting.value) if name in planned.plan.env else setting.value
        text = (
            "-" if value is None else json.dumps(value) if isinstance(value, dict) else str(value)
        )
        style = ORIGINS.get(setting.origin, "") if value is not None else "dim"
        table.add_row(Text(name, style), Text(text, style), setting.origin, Text(setting.reason))
    console.print(table, soft_wrap=False)
    console.print()
    console.print(Text(shlex.join(planned.command.shown), style="bold"))
    if planned.memory is not None:
        console.print()
        show_memory(planned, planned.memory, console)
    for warning in planned.plan.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    if planned.refusal:
        console.print(Text(f"the daemon would not start this plan: {planned.refusal}", style="red"))


def show_memory(planned: PlannedEngine, memory: MemoryEstimate, console: Console) -> None:
    """Print the forecast: a bar per card, what fits, and what would make it fit."""
    if memory.parts:
        _show_parts(planned, memory, console)
    elif memory.fits is None:
        console.print(Text(f"no forecast: {memory.reason}", style="yellow"))
    for conflict in memory.conflicts:
        console.print(Text(str(conflict), style="red"))
    for text in memory.advice:
        console.print(Text(f"  would help: {text}"))


def _show_parts(planned: PlannedEngine, memory: MemoryEstimate, console: Console) -> None:
    gpus = planned.cards
    for rank in memory.ranks:
        console.print(Text(_place(rank)))
        if rank.cards:
            console.print(_bar("     ", rank.parts, rank.total_mib))
        _print_legend(rank.parts, console, cards=bool(rank.cards))
    if not memory.ranks:
        for gpu in gpus:
            console.print(bar(gpu, memory))
        _print_legend(memory.parts, console, cards=bool(gpus))
    if memory.host_parts:
        host = planned.inventory.host
        others = ("others", float(host.ram_mib - host.available_mib))
        console.print(_bar("RAM  ", (*memory.host_parts, others), host.ram_mib))
        _print_legend(memory.host_parts, console, cards=False)
    verdict_text = "does not run: " if memory.conflicts else "does not fit: "
    verdict = Text("fits: ", style="green") if memory.fits else Text(verdict_text, style="red")
    console.print(verdict.append(_verdict(memory), style="default"))


def _print_legend(parts: Iterable[tuple[str, float]], console: Console, *, cards: bool) -> None:
    """Print the size of each part of the forecast; host memory has only some of them."""
    legend = Text("       ")
    for name, size in parts:
        if round(size) and (cards or name in ("weights", "kv")):
            legend.append(f"█ {LEGEND[name]} {size / 1024:.2f}  ", style=COLOURS[name])
    if legend.plain.strip():
        console.print(legend.append("GiB"))


def _place(rank: RankForecast) -> str:
    """Describe a stage's location: "stage 0 on cards 0, 1 of head: layers 0 to 31"."""
    numbers = ", ".join(map(str, rank.cards))
    cards = f" on card{'s' * (len(rank.cards) > 1)} {numbers}" if numbers else ""
    node = f" of {rank.node}" if rank.node else ""
    first, last = rank.layers
    layers = f"layers {first} to {last}" if last > first else f"layer {first}"
    decides = "; it has the least free memory, which decides the cache of all stages"
    return f"stage {rank.stage}{cards}{node}: {layers}{decides * rank.fullest}"


def bar(gpu: Gpu, memory: MemoryEstimate) -> Text:
    """A bar with a card's contents, never longer than the card; any excess follows as text."""
    parts = {**dict(memory.parts), "others": float(occupancy.in_use(gpu))}
    return _bar(f"GPU {gpu.index}", parts.items(), gpu.total_mib)


def _bar(label: str, parts: Iterable[tuple[str, float]], total_mib: int) -> Text:
    sizes = {**dict(parts), "free": 0.0}
    over = sum(sizes.values()) - total_mib
    sizes["free"] = max(-over, 0.0)
    text = Text(f"{label}  ")
    for name, count in cells(sizes, total_mib, BAR):
        text.append("█" * count, style=COLOURS[name])
    text.append(f"  {total_mib / 1024:.1f} GiB")
    if over >= 1:
        text.append(f", {over / 1024:.2f} GiB short", style=COLOURS["others"])
    return text


def _verdict(memory: MemoryEstimate) -> str:
    if memory.lack:
        return memory.lack
    need = f"a full-length request needs {memory.needed_mib / 1024:.2f} GiB"
    if memory.fits and not memory.needed_mib:
        return f"an encoder has no KV cache; the longest text is {memory.max_model_len} tokens"
    if memory.shortage:
        return f"{memory.shortage}; {need}"
    return (
        f"{memory.kv_mib / 1024:.2f} GiB of cache holds {memory.kv_tokens} tokens; {need}; it "
        f"holds a context of at most {memory.max_model_len}"
    )


VERB = Verb(
    name="plan",
    group=Group.OFFLINE,
    help="show the command line that would run, with reasons and a memory forecast",
    description="Show what the daemon would start here: every setting with its reason, and"
    " whether the model fits. Needs no daemon. Exit status 1 if no plan can be made, or the engine"
    " could not start with it.",
    epilog="example: caovanctl plan /srv/models/Qwen3.6-27B-AWQ --mode fast",
    arguments=arguments,
    json="print it as JSON",
    run=run,
)
