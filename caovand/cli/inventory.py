"""`caovanctl inventory`: show the machine and the model, as input for planning elsewhere."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

from rich.table import Table

from caovand.adapters.engine.choice import chosen_engine
from caovand.cli.common.candidates import with_engine
from caovand.cli.common.console import console
from caovand.cli.common.errors import Exit
from caovand.cli.common.survey import (
    SurveyedMachine,
    add_config,
    asked_config,
    inspect,
    running,
)
from caovand.cli.common.verb import Group, Verb
from caovand.core.config.schema import Config
from caovand.core.facts import inventory_file
from caovand.core.facts.inventory import EngineInfo, Gpu
from caovand.engines import registry


def arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--inventory", type=Path, metavar="FILE", help="show a saved inventory")


def run(args: argparse.Namespace) -> int:
    daemon = {} if args.inventory else running(args.runtime)
    config, source = asked_config(args.config, daemon)
    machine = inspect(config, args.inventory, source=source)
    kind, engines = chosen_engine(config).name, dict(machine.engines)
    if machine.engine is not None:
        engines = {kind: machine.engine, **engines}
    if args.json:
        if args.inventory is None:
            engines |= _others(config, source)
        engine = engines.pop(kind, None)
        print(json.dumps(inventory_file.render(machine.gpus, machine.host, engine, kind, engines)))
        return Exit.DONE
    out = console()
    out.print(_cards(machine.gpus) if machine.gpus else "no NVIDIA GPU is visible")
    for line in (*_host_lines(machine), *_engine_lines(machine, engines)):
        out.print(line)
    return Exit.DONE


def _others(config: Config, source: Path) -> dict[str, EngineInfo]:
    """Installed engines of other kinds."""
    kinds = [kind for kind in registry.MODULES if kind != chosen_engine(config).name]
    seen = {kind: inspect(with_engine(config, kind), source=source).engine for kind in kinds}
    return {kind: engine for kind, engine in seen.items() if engine is not None}


def _cards(gpus: tuple[Gpu, ...]) -> Table:
    table = Table("GPU", "name", "SM", "MiB free", "of", "link", "used by")
    for gpu in gpus:
        link = f"PCIe {gpu.pcie[0]} x{gpu.pcie[1]}" if gpu.pcie else ""
        link += "".join(f" NVLink:{peer}" for peer in gpu.nvlink)
        users = ", ".join(f"{name} ({pid}) {mib} MiB" for pid, name, mib in gpu.users)
        capability = "{}{}".format(*gpu.compute_capability)
        name = gpu.name + (" MIG" if gpu.mig else "")
        table.add_row(
            str(gpu.index), name, capability, str(gpu.free_mib), str(gpu.total_mib), link, users
        )
    return table


def _host_lines(machine: SurveyedMachine) -> Iterator[str]:
    host = machine.host
    if machine.gpus and machine.gpus[0].driver:
        yield f"driver  {machine.gpus[0].driver}, CUDA up to {machine.gpus[0].cuda}"
    yield (
        f"host    {host.ram_mib} MiB RAM, {host.available_mib} available, {host.swap_mib} swap,"
        f" {host.shm_mib} /dev/shm, {host.cpus} cores{', WSL' if host.wsl else ''}"
    )
    extensions = " ".join(host.instructions)
    if extensions:
        nodes = f", {host.numa_nodes} NUMA nodes" if host.numa_nodes > 1 else ""
        yield f"        {host.architecture}: {extensions}{nodes}"


def _engine_lines(machine: SurveyedMachine, engines: Mapping[str, EngineInfo]) -> Iterator[str]:
    if not engines:
        yield f"engine  {machine.engine_problem}"
    for kind, engine in engines.items():
        title = registry.engine_of(kind).title if kind in registry.MODULES else kind
        name = PurePath(engine.executable).name or title
        parts = [f"{name} {engine.version} ({engine.build})"]
        parts += [f"torch {engine.torch}"] if engine.torch else []
        parts += [f"CUDA {engine.cuda}"] if engine.cuda else []
        parts += [f"FlashInfer {engine.flashinfer}"] if engine.flashinfer else []
        parts += [f"plugin {engine.plugin}"] if engine.plugin else []
        yield f"engine  {', '.join(parts)}"
        if engine.executable:
            yield f"        {engine.executable}"
        yield f"        {engine.python} (Python {engine.python_version or '?'})"


VERB = Verb(
    name="inventory",
    group=Group.OFFLINE,
    help="show cards, host and engine",
    description="Show the cards, the host and the engine that a plan is made from.",
    epilog="example: caovanctl inventory --json > machine.json;"
    " caovanctl plan MODEL --inventory machine.json",
    arguments=arguments,
    json="print it as JSON",
    run=run,
)
