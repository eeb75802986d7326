"""Gather configuration, machine, engine and model for offline verbs, without a daemon."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, cast

from caovand.adapters import model_folder
from caovand.adapters.engine import probe
from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.files import config_file, safe_files, trust
from caovand.adapters.files.directories import directories, own_directories
from caovand.adapters.gpu import nvml
from caovand.adapters.system import host, memory_speed, processes
from caovand.cli.common.client import client_for
from caovand.cli.common.errors import CommandError, Exit
from caovand.core.cluster.node import assume_nodes
from caovand.core.config.key import ConfigError
from caovand.core.config.schema import Config, Mode
from caovand.core.engine.record import Engine
from caovand.core.facts import inventory_file
from caovand.core.facts.inventory import EngineInfo, Gpu, Host, Inventory, ModelCard
from caovand.core.facts.occupancy import with_memory_back
from caovand.core.plan import Unplannable
from caovand.core.problem import Problem
from caovand.engines import registry
from caovand.preparation import memories
from caovand.preparation.model import read_model
from caovand.preparation.plan_request import PlanRequest

SYSTEM_CONFIG = Path("/etc/caovan.toml")
MAX_INVENTORY_BYTES = 4 << 20


@dataclass(frozen=True)
class SurveyedMachine:
    """Cards, host and engine; `engine_problem` says why there is no engine.

    A `half_asked` engine has not reported its flags, parsers and models in time. `engines` are all
    engines in a saved inventory, by kind.
    """

    gpus: tuple[Gpu, ...]
    host: Host
    engine: EngineInfo | None
    engine_problem: Problem | None = None
    half_asked: bool = False
    engines: Mapping[str, EngineInfo] = field(default_factory=dict)

    def with_model(self, config: Config, model: ModelCard | None = None) -> Inventory:
        """The complete input of a plan; `model` if it was already read.

        Raises CommandError if engine or model is missing.
        """
        if self.engine is None:
            raise CommandError(Exit.FAILED, str(self.engine_problem))
        model = model or model_of(config)
        inventory = Inventory(self.gpus, self.host, self.engine, model)
        nodes = chosen_engine(config).nodes
        with contextlib.suppress(Unplannable):  # planning will fail for the same reason
            if nodes is not None:
                others = assume_nodes(config.cluster, nodes.usable_cards(config, inventory))
                return replace(inventory, others=others)
        return inventory


def model_of(config: Config) -> ModelCard:
    """The configured model; raises CommandError if it cannot be served."""
    try:
        return read_model(config, os.environ)
    except model_folder.ModelProblem as problem:
        raise CommandError(Exit.FAILED, str(problem)) from None


def read_first(config: Config) -> ModelCard | None:
    """Read the model before querying the engine, which may take half a minute; raises CommandError.

    None if the engine is not installed, which is detected at once and must be fixed first.
    """
    slow = chosen_engine(config).install.elsewhere is None
    if slow and os.path.exists(PlanRequest(config, None, os.environ).python):
        return model_of(config)
    return None


def configuration(path: Path | None, model: str | None = None) -> Config:
    """The file's configuration (the system's by default), with this model."""
    if path is not None and path.suffix in (".yaml", ".yml"):
        raise CommandError(
            Exit.FAILED,
            f"cannot use {path} as a configuration: it is a vLLM file, and --config expects "
            "caovan's TOML; pass its keys as vLLM flags after the model, or in [engine] "
            "extra_args",
        )
    if path is None and not SYSTEM_CONFIG.exists():
        config = Config()
    else:
        try:
            config = config_file.load(path or SYSTEM_CONFIG)
            config_file.check_secret_files(config)
        except ConfigError as problem:
            raise CommandError(Exit.FAILED, str(problem)) from None
    if model is None:
        return config
    return replace(config, model=replace(config.model, path=model))


def inspect(
    config: Config,
    saved: Path | None = None,
    engine_pid: int | None = None,
    patience_s: float | None = None,
    source: Path | None = None,
) -> SurveyedMachine:
    """Inspect this machine, or read a saved inventory and, if it names no engine, look for one
    here.

    `saved` is the inventory's file. `engine_pid` is the daemon's own engine, whose memory counts as
    free, because the plan is for its successor. `patience_s` limits queries to an engine that was
    never probed before. `source` is the configuration's file: if it is another user's, root runs
    the engine it names as that user.
    """
    if saved is not None:
        gpus, seen, engines = read_saved(saved)
        if not engines:
            return replace(_engine(config, patience_s, source), gpus=gpus, host=seen)
        chosen = chosen_engine(config)
        engine = engines.get(chosen.name)
        problem = None if engine else _not_saved(chosen, engines)
        return SurveyedMachine(gpus, seen, engine, problem, engines=engines)
    probed = _engine(config, patience_s, source)
    our_pids = engine_processes(engine_pid) if engine_pid else frozenset()
    free_mib = min(probed.host.available_mib + processes.memory_mib(our_pids), probed.host.ram_mib)
    seen = replace(probed.host, available_mib=free_mib)
    return replace(probed, gpus=with_memory_back(probed.gpus, our_pids), host=seen)


def engine_processes(first: int) -> frozenset[int]:
    """Processes in the session of the engine's first process."""
    return frozenset(p.pid for p in processes.all_processes() if first in (p.session, p.pid))


def running(runtime: Path | None) -> dict[str, Any]:
    """A running daemon's status, whether its engine lives or not; empty without a daemon."""
    try:
        with client_for(runtime) as client:
            return dict(client.ask("status", answer_s=1.0))
    except CommandError:
        return {}


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add --config, for verbs that use the daemon's file by default."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"default: the running daemon's, else {SYSTEM_CONFIG}",
    )


def daemon_config(daemon: Mapping[str, Any]) -> Path | None:
    """Configuration file of a running daemon, because people ask about what is running.

    As root, reject a file from a daemon's reply if another user could have written it.
    """
    if not daemon:
        return None
    path = Path(daemon["daemon"]["config"])
    if os.geteuid() == 0 and (doubt := trust.find_doubt(path)) is not None:
        raise CommandError(
            Exit.FAILED,
            f"cannot use {path}, which the running daemon names: {doubt}",
            "run this as that daemon's user, or name a file with --config FILE",
        )
    return path


def config_path(typed: Path | None, daemon: Mapping[str, Any]) -> Path:
    """The file that a verb refers to: as typed, else the running daemon's, else the system's."""
    return typed or daemon_config(daemon) or SYSTEM_CONFIG


def asked_config(
    typed: Path | None, daemon: Mapping[str, Any], model: str | None = None
) -> tuple[Config, Path]:
    """The configuration that a verb refers to, with this model, and its file.

    The system's file may be missing. Raises CommandError.
    """
    return configuration(typed or daemon_config(daemon), model), config_path(typed, daemon)


def file_to_edit(args: argparse.Namespace) -> Path:
    """The configuration file that advice refers to."""
    with contextlib.suppress(CommandError):
        return config_path(args.config, running(args.runtime))
    return SYSTEM_CONFIG


def cache_of(daemon: Mapping[str, Any]) -> Path:
    """Cache folder of the running daemon, else of a daemon started here."""
    cache = daemon["daemon"].get("cache") if daemon else ""  # older daemons do not report it
    return Path(cache) if cache else directories(os.environ, os.getuid()).cache


def chosen_mode(daemon: Mapping[str, Any], saved: Path | None) -> Mode | None:
    """The mode that `caovanctl mode` chose; None if the file decides.

    Without a daemon, it is what the last one stored; unknown for another machine.
    """
    if daemon:
        ours = daemon["mode_origin"] == "caovanctl mode"
        return cast(Mode, daemon["mode"]) if ours else None
    if saved is not None:
        return None
    state = directories(os.environ, os.getuid()).state
    return config_file.ModeMemory(memories.find(state, memories.MODE)).mode


def _not_saved(chosen: Engine, engines: Mapping[str, EngineInfo]) -> Problem:
    known = [registry.engine_of(kind).title for kind in engines if kind in registry.MODULES]
    return Problem(
        f"plan for {chosen.title}",
        "the saved inventory has only "
        f"{', '.join(known) or 'engines that caovan does not support'}",
        "install it there, and save the inventory again with `caovanctl inventory --json`",
    )


def _by_kind(engines: dict[str, EngineInfo]) -> dict[str, EngineInfo]:
    """Engines by kind; an entry without a kind is recognised by its program, else it is the default
    kind."""
    unnamed = engines.pop(inventory_file.UNNAMED, None)
    if unnamed is None:
        return engines
    program = PurePath(unnamed.executable).name
    sources = {kind: registry.engine_of(kind).install.source for kind in registry.MODULES}
    built = {source.target: kind for kind, source in sources.items() if source is not None}
    kind = built.get(program, program if program in registry.MODULES else registry.DEFAULT)
    return {kind: unnamed, **engines}


def read_saved(path: Path) -> tuple[tuple[Gpu, ...], Host, Mapping[str, EngineInfo]]:
    """A saved inventory, its engines by kind; raises CommandError if it is invalid."""
    remedy = "make one with `caovanctl inventory --json > FILE`"
    try:
        document = json.loads(safe_files.read(path, MAX_INVENTORY_BYTES))
        gpus, seen, _ = inventory_file.parse(document)
        return gpus, seen, _by_kind(inventory_file.engines_in(document))
    except OSError as problem:
        text = f"cannot read {path}: {problem.strerror}"
    except (ValueError, RecursionError) as problem:
        text = f"cannot read {path}: not JSON: {problem}"
    except inventory_file.BadInventory as problem:
        text = f"cannot use {path}: {problem}"
    raise CommandError(Exit.FAILED, f"{text}; {remedy}")


def _engine(config: Config, patience_s: float | None, source: Path | None) -> SurveyedMachine:
    cache = directories(os.environ, os.getuid()).cache
    gpus = nvml.read_gpus()
    own_cache = own_directories(os.environ, os.getuid()).cache
    seen = memory_speed.with_memory_speed(host.read_host(cache), own_cache, cache)
    asks, python = chosen_engine(config).probe, PlanRequest(config, None, os.environ).python

    def announce() -> None:
        text = f"reading the options of {asks.name} from {python}, once; up to a minute ..."
        print(text, file=sys.stderr, flush=True)

    try:
        engine = probe.probe_engine(
            asks,
            python,
            own_cache
            if trust.find_doubt(own_cache, (0, os.getuid()), groups=True) is None
            else None,
            patience_s=patience_s,
            named_by=source if config.engine.python else None,
            also_kept_in=cache,
            before_details=announce,
        )
    except probe.EngineMissing as problem:
        return SurveyedMachine(gpus, seen, None, problem.problem)
    return SurveyedMachine(gpus, seen, engine, half_asked=not engine.flags)
