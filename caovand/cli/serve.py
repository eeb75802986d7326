"""`caovan-vllm-serve MODEL [vLLM flags]`: the arguments of `vllm serve`, planned and supervised.

The flags are passed verbatim and win; everything else is planned. The daemon then runs in the
foreground with its own sockets, named after the port, so that it conflicts with no other daemon.
With --exec there is no supervision: the process becomes vLLM.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from caovand.adapters.files import safe_files, trust, yaml_file
from caovand.adapters.files.config_file import ModeMemory
from caovand.adapters.files.directories import Directories, own_directories
from caovand.adapters.system import processes
from caovand.cli.common import own_daemon
from caovand.cli.common.console import console
from caovand.cli.common.ending import run_to_exit_status
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.planned import PlannedEngine, plan_for, saved_plan
from caovand.cli.common.survey import SYSTEM_CONFIG, configuration, inspect
from caovand.cli.common.verb import Group, Verb
from caovand.cli.plan import print_plan
from caovand.core.config.schema import Config, EngineSection, Mode
from caovand.core.engine.serve_words import ServeRequest, ServeWords
from caovand.core.facts.inventory import version_numbers
from caovand.core.plan import Unplannable
from caovand.core.problem import ProblemError
from caovand.engines.registry import engine_of
from caovand.preparation import memories
from caovand.preparation.plan_request import PlanRequest

MAX_SCRIPT_BYTES = 1 << 20
SAFE_PATH_SINCE = (3, 11)
"""The first Python with PYTHONSAFEPATH, which also keeps the current folder out of child
processes."""
WITHOUT_FOLDER = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import runpy; "
    "runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)
"""Not `-m`: that would first search for modules in the current folder, which may be untrusted."""
USAGE = "%(prog)s [--exec] MODEL [vLLM flags]"
DESCRIPTION = (
    "Serve a model with vLLM: your flags win, everything else is planned for this machine."
)
EXEC = "replace this process with vLLM, unsupervised"
EPILOG = "example: caovan-vllm-serve /srv/models/Qwen3.6-27B-AWQ --port 8000 --max-model-len 131072"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--exec", action="store_true", help=EXEC)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="MODEL [vLLM flags]")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `caovan-vllm-serve`."""
    parser = argparse.ArgumentParser(
        prog="caovan-vllm-serve",
        usage=USAGE,
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--exec", action="store_true", help=EXEC)
    args, rest = parser.parse_known_args(sys.argv[1:] if argv is None else list(argv))
    args.words = rest
    return run_to_exit_status("caovan-vllm-serve", lambda: run(args))


def run(args: argparse.Namespace) -> int:
    """Become the daemon or vLLM; return only if neither can start."""
    words = [word for word in args.words if word != "--exec"]
    other_kind = _words().other_kind(words)
    engine, namer = (EngineSection(kind=other_kind), None) if other_kind else _engine()
    python = PlanRequest(Config(engine=engine), None, os.environ).python
    try:
        trust.require(python, namer)
    except trust.Distrusted as problem:
        raise CommandError(Exit.FAILED, str(problem)) from None
    machine = inspect(Config(engine=engine), None, None, None, namer)
    known = machine.engine
    words = with_config_file(words, python, known.flags if known else ())
    vllm = None if other_kind else known  # another engine has other flags
    order = read(words, engine, *((vllm.flags, vllm.switches) if vllm else ()))
    unsupervised = args.exec or "--exec" in args.words
    if unsupervised and other_kind:
        fact = f"cannot run vLLM with {order.config.model.path}: another engine serves GGUF files"
        raise CommandError(Exit.USAGE, fact, "omit --exec")
    mode = None if unsupervised else remembered_mode(order)
    places = own_places(order)
    config = with_key_file(order, places.state)
    kept = None if unsupervised else saved_plan(places.state)
    planned = plan_for(config, machine.with_model(config), mode, kept, places.cache)
    out = console(stderr=True)
    print_plan(planned, out)
    if order.note:
        out.print(Text(order.note))
    if unsupervised:
        become_engine(planned, order)
    become_daemon(order, out)
    return Exit.FAILED


def with_config_file(words: Sequence[str], python: str, known: Collection[str]) -> list[str]:
    """The command line expanded with the keys of its `--config FILE`; raises CommandError."""
    try:
        path = _words().named_file(words)
        return _words().expand(words, yaml_file.read(path, python), known) if path else [*words]
    except ProblemError as error:
        problem = error.problem
        raise CommandError(Exit.USAGE, problem.message, problem.remedy) from None


def read(
    words: Sequence[str],
    engine: EngineSection | None = None,
    known: Collection[str] = (),
    switches: Collection[str] = (),
) -> ServeRequest:
    """The configuration that these words describe; raises CommandError if they name no model."""
    try:
        return _words().read(words, engine or EngineSection(), known, switches)
    except Unplannable as problem:
        raise CommandError(Exit.USAGE, str(problem)) from None
    except ProblemError as error:
        raise CommandError(Exit.USAGE, error.problem.message, error.problem.remedy) from None


def _words() -> ServeWords:
    """The words of the command that this verb stands in for."""
    words = engine_of().serve_words
    assert words is not None
    return words


def _engine() -> tuple[EngineSection, Path | None]:
    """Return the engine and the file that names it: the system configuration's engine, the
    installed one, or the one of `vllm` on PATH."""
    engine = EngineSection()
    with suppress(CommandError):
        if SYSTEM_CONFIG.exists():
            typed = configuration(SYSTEM_CONFIG).engine
            engine = EngineSection(python=typed.python, gpus=typed.gpus, plugin=typed.plugin)
    if Path(PlanRequest(Config(engine=engine), None, os.environ).python).exists():
        return engine, SYSTEM_CONFIG
    script = trust.program("vllm", os.environ)
    if script is None:
        return replace(engine, python=None), None
    return replace(engine, python=_interpreter(Path(script))), Path(script)


def _interpreter(script: Path) -> str | None:
    """The Python in a script's shebang line."""
    with suppress(OSError):
        first = safe_files.read(script, MAX_SCRIPT_BYTES).split(b"\n", 1)[0]
        line = os.fsdecode(first).strip()
        if line.startswith("#!/") and " " not in line:
            return line[2:]
    return None


def become_engine(planned: PlannedEngine, order: ServeRequest) -> None:
    """Replace this process with vLLM."""
    if planned.command.unlimited_stack:
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))
    share_caches(planned, own_places(order).cache)
    sys.stderr.flush()
    argv = without_folder(planned.command.argv)
    environ = trust.own_environ(os.environ)
    environ["PATH"] = processes.inherited_environ(environ, argv[0])["PATH"]
    env = {**environ, **planned.command.env, **order.secrets}
    if _version(planned) < SAFE_PATH_SINCE:
        # Its children would search for modules in the current folder, and nothing prevents that.
        os.chdir("/")
    os.execve(argv[0], argv, {**env, "PYTHONSAFEPATH": "1"})


def share_caches(planned: PlannedEngine, cache: Path) -> None:
    """Let vLLM reuse what engines of other plans cached, unless other users could change the
    cache."""
    if trust.find_doubt(cache, (0, os.getuid()), groups=True) is None:
        for place, folder in planned.command.links:
            with suppress(OSError):  # vLLM then works it out anew
                safe_files.link_to(Path(place), Path(folder))


def without_folder(argv: Sequence[str]) -> tuple[str, ...]:
    """The engine's command line, without the current folder in Python's search path."""
    module = _words().module
    assert argv[2] == module
    return (argv[0], "-c", WITHOUT_FOLDER.format(module=module), *argv[3:])


def _version(planned: PlannedEngine) -> tuple[int, ...]:
    return version_numbers(planned.inventory.engine.python_version)[:2]


def own_places(order: ServeRequest) -> Directories:
    """The daemon's folders for this port, which no other daemon shares."""
    places, name = own_directories(os.environ, os.getuid()), f"serve-{order.config.server.port}"
    return replace(
        places,
        runtime=places.runtime / name,
        state=places.state / name,
        logs=places.logs / name,
    )


def remembered_mode(order: ServeRequest) -> Mode | None:
    """The mode that `caovanctl mode` chose for this port's earlier daemon; the next one will use
    it."""
    return ModeMemory(memories.find(own_places(order).state, memories.MODE)).mode


def become_daemon(order: ServeRequest, out: Console) -> None:
    """Replace this process with the daemon, on its own configuration file and folders."""
    places = own_places(order)
    runtime, state = places.runtime, places.state
    try:
        places.make()
        path = write_config(state, order)
    except OSError as problem:
        fact = f"cannot write {state}: {problem.strerror}" if problem.strerror else str(problem)
        raise CommandError(
            Exit.FAILED,
            fact,
            "set STATE_DIRECTORY to a folder you can write to, or use --exec",
        ) from None
    out.print(Text(f"supervising: caovanctl --runtime {runtime} status", style="bold"))
    env = {
        **own_daemon.environ(places),
        **{name: value for name, value in order.secrets.items() if name != "VLLM_API_KEY"},
    }
    sys.stderr.flush()
    argv = [sys.executable, "-c", own_daemon.code(), "--config", str(path)]
    os.execve(sys.executable, argv, env)


def write_config(state: Path, order: ServeRequest) -> Path:
    """Write the configuration and the key as files for the daemon, readable only by us."""
    key = order.secrets.get("VLLM_API_KEY")
    more = {} if key is None else {"api-key": key}
    return own_daemon.write(state, with_key_file(order, state), more)


def with_key_file(order: ServeRequest, state: Path) -> Config:
    """The configuration with a file that holds the key from the command line."""
    if "VLLM_API_KEY" not in order.secrets:
        return order.config
    server = replace(order.config.server, api_key_file=str(state / "api-key"))
    return replace(order.config, server=server)


VERB = Verb(
    name="serve",
    group=Group.OFFLINE,
    help="plan and supervise a `vllm serve`",
    description=DESCRIPTION,
    epilog=EPILOG,
    arguments=arguments,
    run=run,
)

if __name__ == "__main__":
    sys.exit(main())
