"""`caovanctl cluster nodes`: show the cluster's machines, and which are missing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from itertools import chain, zip_longest
from typing import Any

from rich.table import Table

from caovand.cli.cluster.shared import ask, missing_nodes, named_twice
from caovand.cli.common.console import console
from caovand.cli.common.errors import Exit
from caovand.cli.common.status_lines import duration, memory
from caovand.cli.common.verb import Verb
from caovand.core.reporting.card_text import card_kinds
from caovand.core.reporting.report import compare


def run(args: argparse.Namespace) -> int:
    answer = ask(args)
    if args.json:
        print(json.dumps(answer))
        return Exit.DONE
    out = console()
    table = Table("node", "state", "address", "engine", "cards", "ranks")
    for node in answer["nodes"]:
        table.add_row(*_row(node))
    out.print(table)
    for node in answer["nodes"]:
        if compared := compare(answer["forecast"], node["reported"]):
            out.print(f"{node['name']}: {memory(compared)}")
        if node["network"]:
            out.print(f"{node['name']}: NCCL sends {node['network']}")
    for line in (*missing_nodes(answer), *named_twice(answer)):
        out.print(line)
    return Exit.DONE


def _row(node: Mapping[str, Any]) -> tuple[str, ...]:
    """A node's table row; a node that has sent no facts has empty cells."""
    facts = node["facts"]
    state = node["state"]
    if state != "here":
        state += f" for {duration(node['since_s'])}"
    engine = f"{facts['engine']} {facts['version']}" if facts else ""
    return node["name"], state, node["address"], engine, _cards(facts), ", ".join(_ranks(node))


def _ranks(node: Mapping[str, Any]) -> Iterator[str]:
    """Each rank with its process, and its card if known."""
    for rank, gpu in zip_longest(node["ranks"], node["gpus"]):
        card = "" if gpu is None else f", GPU {gpu}"
        yield f"{rank['rank']} (pid {rank['pid']}{card})"


def _cards(facts: Mapping[str, Any]) -> str:
    """Cards by kind."""
    if not facts:
        return ""
    each = ([(card["name"], card["memory_mib"])] * card["count"] for card in facts["cards"])
    return card_kinds(chain.from_iterable(each)) or "none"


VERB = Verb(
    name="nodes",
    help="show the cluster's machines",
    description="Show the cluster's machines: state, address, engine, cards and ranks, and which"
    " are missing or refused. A worker shows itself and the head.",
    epilog="example: caovanctl cluster nodes",
    json="print it as JSON",
    run=run,
)
