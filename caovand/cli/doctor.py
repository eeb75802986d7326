"""`caovanctl doctor` = `caovan-sm75-doctor`: find what would stop the engine here, and the fix."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from caovand.adapters import model_folder
from caovand.adapters.confinement import launch
from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.files.directories import own_directories
from caovand.adapters.network import ports
from caovand.adapters.privileges import engine_user
from caovand.adapters.servers import server_process
from caovand.adapters.servers.server_process import GATEWAY, PAGE, ServerKind
from caovand.adapters.system import host, memory_speed
from caovand.cli.common.alternatives import alternatives
from caovand.cli.common.checks import report
from caovand.cli.common.doctor_facts import gather
from caovand.cli.common.ending import run_to_exit_status
from caovand.cli.common.survey import (
    add_config,
    asked_config,
    cache_of,
    chosen_mode,
    engine_processes,
    inspect,
    running,
)
from caovand.cli.common.verb import Group, Verb
from caovand.core.addresses import split_address
from caovand.core.config.schema import Config
from caovand.core.engine.record import Engine
from caovand.core.facts.checks import CheckResult, DoctorFacts
from caovand.core.facts.inventory import ModelCard
from caovand.core.problem import Problem
from caovand.daemon.start.confinement import readable_keys
from caovand.daemon.start.inspection import read_model

PATIENCE_S = 3.0
"""The time to wait for an engine that was never probed: its vLLM may take half a minute."""
PLANNED = ("model", "memory", "plan")
"""Groups of checks whose outcome depends on the engine."""


def arguments(parser: argparse.ArgumentParser) -> None:
    _add_options(parser)
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="[MODEL] [vLLM flags]",
        help="what you want to serve",
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--inventory", type=Path, metavar="FILE", help="a saved inventory")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `caovan-sm75-doctor`."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="caovan-sm75-doctor",
        usage="%(prog)s [--config FILE] [--inventory FILE] [--json] [MODEL] [vLLM flags]",
        description="Check what keeps the engine from running on this machine, and how to fix it.",
        epilog="example: caovan-sm75-doctor /srv/models/Qwen3.6-27B-AWQ --max-model-len 131072",
        allow_abbrev=False,
    )
    _add_options(parser)
    args, rest = parser.parse_known_args(words)
    args.words, args.runtime = rest, None
    return run_to_exit_status("caovan-sm75-doctor", lambda: run(args))


def run(args: argparse.Namespace) -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_options(parser)
    parser.set_defaults(config=args.config, inventory=args.inventory, json=args.json)
    options, words = parser.parse_known_args(args.words)
    checks = findings(options.config, options.inventory, words, args.runtime)
    return report(checks, as_json=options.json)


def findings(
    file: Path | None,
    saved: Path | None = None,
    words: Sequence[str] = (),
    runtime: Path | None = None,
) -> tuple[CheckResult, ...]:
    """All results for a configuration file, or for the daemon's.

    `saved` is an inventory to check instead of this machine; `words` are a model and vLLM's flags;
    `runtime` is the folder of the daemon's sockets. Raises CommandError.
    """
    path, flags = (words[0], words[1:]) if words and words[0][0] != "-" else (None, words)
    status = {} if saved else running(runtime)
    config, source = asked_config(file, status, path)
    extra = (*config.engine.extra_args, *flags)
    config = replace(config, engine=replace(config.engine, extra_args=extra))
    pid, mode = status.get("engine_pid"), chosen_mode(status, saved)
    with ThreadPoolExecutor(1) as pool:  # read a model from a slow disk while querying the engine
        reading = pool.submit(_model, config)
        machine = inspect(config, saved, pid, PATIENCE_S, source)
    seen = reading.result()
    in_gguf = seen[0] is not None and seen[0].gguf is not None
    if in_gguf and not saved and machine.host.memory_gb_s is None:
        own_cache = own_directories(os.environ, os.getuid()).cache
        machine = replace(
            machine, host=memory_speed.with_memory_speed(machine.host, measure_in=own_cache)
        )
    cache = cache_of(status)
    if not saved:
        free_mib = host.read_host(cache).cache_free_mib
        machine = replace(machine, host=replace(machine.host, cache_free_mib=free_mib))
    living = engine_processes(pid) if pid else frozenset()
    facts = gather(config, machine, seen, saved, mode, cache, living)
    engine = chosen_engine(config)
    checks = engine.planning.checks(facts)
    here = () if saved else _of_this_machine(config, status)
    if config.cluster.role == "worker":
        return (*checks, _planned_by(config.cluster.head), *here)
    return (*checks, *_alternatives(engine, facts, checks), *here)


def _planned_by(head: str) -> CheckResult:
    text = f"this machine is a worker of {head}, and its head plans over all nodes"
    return CheckResult("plan", "PASS", f"{text}: `caovanctl doctor` there checks that plan")


def _alternatives(
    engine: Engine, facts: DoctorFacts, checks: tuple[CheckResult, ...]
) -> Iterator[CheckResult]:
    """Other engines for a model that this one cannot serve, or serves far more slowly."""
    failed = any(check.verdict == "FAIL" and check.group in PLANNED for check in checks)
    if facts.model is None or not (failed or facts.tokens_s):
        return
    tokens_s = 0.0 if failed else facts.tokens_s or 0.0
    yield from alternatives(engine, facts.model, facts.gpus, facts.host, tokens_s)


def _of_this_machine(config: Config, status: Mapping[str, Any]) -> Iterator[CheckResult]:
    daemon = status.get("daemon", {})
    user = daemon.get("engine_user", "")
    yield confinement_check(config.engine.confine, launch.landlock_abi(), user)
    if "engine_user" in daemon:
        yield user_check(daemon["engine_user"], daemon["own_user"])
    if config.engine.confine:
        for file in readable_keys(config):
            text = f"the engine can read {file}: files in /etc cannot be hidden from it"
            remedy = "move it to a folder outside of /etc that only the daemon's user may enter"
            yield CheckResult("confinement", "WARN", text, remedy)
    for kind, section in ((PAGE, config.page), (GATEWAY, config.gateway)):
        yield from server_checks(kind, section.listen, status.get(kind.name))


def confinement_check(confine: bool, abi: int, user: str) -> CheckResult:
    """Check the confinement of the engine; `abi` is the version of the kernel's Landlock.

    `user` is the engines' own user, if the running daemon has one.
    """
    group = "confinement"
    if not confine:
        text = "[engine] confine is off: the engine can do all that caovan's own user can"
        return CheckResult(group, "WARN", text, "set it to true")
    if abi < launch.MIN_ABI:
        text = "this kernel has no usable Landlock: the engine can read caovan's keys and end it"
        remedy = "use Linux 5.19 or newer with landlock among its security modules (`lsm=`)"
        return CheckResult(group, "WARN", text, remedy)
    kept = f"Landlock (version {abi}) keeps the engine from caovan's files, keys and"
    if abi >= launch.SCOPE_ABI or user:
        return CheckResult(group, "PASS", f"{kept} processes")
    text = f"{kept} memory, but before Linux 6.12 an engine that runs as the daemon's user can end"
    text += " the daemon by the id of one of its threads, and the page and the gateway"
    remedy = f"run engines as a user of their own ({engine_user.NAME}), or use Linux 6.12 or newer"
    return CheckResult(group, "WARN", text, remedy)


def user_check(user: str, why_none: str) -> CheckResult:
    """Check the user of the engine's processes: `user`, or the daemon's own for a reason."""
    if user:
        text = (
            f"engines run as the user {user}, who has no access to the daemon's files and processes"
        )
    else:
        text = f"engines run as the daemon's own user ({why_none}): only Landlock and seccomp"
        text += " keep them from the daemon's files"
    return CheckResult("confinement", "PASS", text)


def server_checks(
    kind: ServerKind, listen: str, served: Mapping[str, Any] | None
) -> Iterator[CheckResult]:
    """Check whether the page or the gateway is served, and if not, why; `served` is its entry in
    the status."""
    if not listen:
        return
    if not server_process.has_library():
        problem = kind.no_library
        yield CheckResult(kind.name, "WARN", problem.message, problem.remedy)
    elif served and served["problem"]:
        yield CheckResult(kind.name, "WARN", served["problem"])
    elif served:
        yield CheckResult(kind.name, "PASS", f"{kind.title} is served on {served['url']}")
    else:
        _, port = split_address(listen)
        for listener in ports.listeners(port):
            text = f"{kind.title}'s port {port} is taken by {listener}"
            yield CheckResult(kind.name, "WARN", text, f"set another [{kind.name}] listen")


def _model(config: Config) -> tuple[ModelCard | None, Problem | None]:
    try:
        return read_model(config, os.environ), None
    except model_folder.ModelProblem as problem:
        return None, problem.problem


VERB = Verb(
    name="doctor",
    group=Group.OFFLINE,
    help="find what would stop the engine on this machine, and the fix",
    description="Check system, driver, GPUs, engine, plugin, model, memory, port and caches."
    " Exit status 1 if anything fails.",
    epilog="example: caovanctl doctor /srv/models/Qwen3.6-27B-AWQ --max-model-len 131072",
    arguments=arguments,
    run=run,
)

if __name__ == "__main__":
    sys.exit(main())
